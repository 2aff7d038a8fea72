package io.pipeline.delta;

import static java.nio.charset.StandardCharsets.UTF_8;

import java.io.IOException;
import java.lang.reflect.InvocationTargetException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Iterator;
import java.util.Set;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

import io.delta.storage.HadoopFileSystemLogStore;

/**
 * Delta's log on S3, safe with several drivers: a commit is one conditional PUT, which succeeds for one writer only.
 *
 * <p>Hadoop's S3A sends {@code If-None-Match: *} for a file that is created with {@link #CONDITIONAL}, without a check
 * before it. The object appears whole when the stream closes, or not at all. A store that ignores the header accepts
 * both writers, so a caller has to test the store once before it relies on this class.
 *
 * <p>No class of hadoop-aws is referenced, so this class also loads without it.
 */
public class ConditionalS3LogStore extends HadoopFileSystemLogStore {

    /** The option of FileSystem.createFile that requests the conditional PUT; a file system without it refuses. */
    static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

    /** The option of S3A that omits its look for a folder of the same name. */
    private static final String NO_PROBES = "fs.s3a.create.performance";

    /** S3A's exception for the status 412, also if it comes inside the answer to a multipart upload. */
    private static final String CHANGED = "org.apache.hadoop.fs.s3a.RemoteFileChangedException";

    /** 412: the object exists. 409: another request for the same key is under way; Delta reads the log and retries. */
    private static final Set<Integer> LOST = Set.of(409, 412);

    private static final int CAUSES = 16;

    public ConditionalS3LogStore(Configuration configuration) {
        super(configuration);
    }

    /**
     * Writes one file of the log, a line for each action.
     *
     * @throws FileAlreadyExistsException the file exists, and {@code overwrite} is false. After a lost answer the
     *     existing file may be this writer's own; Delta tells them apart only if its idempotency check is on.
     */
    @Override
    public void write(Path path, Iterator<String> actions, Boolean overwrite, Configuration configuration)
            throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        try {
            publish(opened(files, path, overwrite), actions);
        } catch (IOException error) {
            if (!overwrite && isLost(error)) {
                throw alreadyExists(path, error);
            }
            throw error;
        }
    }

    /** The object appears whole or not at all, so a reader never meets half a file. */
    @Override
    public Boolean isPartialWriteVisible(Path path, Configuration configuration) {
        return false;
    }

    /** A stream to the file: without {@code overwrite} its upload is conditional. Neither form sends a request yet. */
    private static FSDataOutputStream opened(FileSystem files, Path path, boolean overwrite) throws IOException {
        FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path).overwrite(overwrite);
        if (overwrite) {
            builder.opt(NO_PROBES, "true");
        } else {
            builder.must(CONDITIONAL, "true");
        }
        return builder.build();
    }

    /** Closing the stream is the upload. After an error before that, the upload is aborted, not closed. */
    private static void publish(FSDataOutputStream stream, Iterator<String> actions) throws IOException {
        try {
            while (actions.hasNext()) {
                stream.write((actions.next() + "\n").getBytes(UTF_8));
            }
        } catch (IOException | RuntimeException | Error error) {
            try {
                stream.abort();
            } catch (UnsupportedOperationException unsupported) {
                error.addSuppressed(unsupported);
            }
            throw error;
        }
        stream.close();
    }

    private static boolean isLost(Throwable error) {
        Throwable cause = error;
        for (int depth = 0; cause != null && depth < CAUSES; depth++, cause = cause.getCause()) {
            if (cause instanceof org.apache.hadoop.fs.FileAlreadyExistsException
                    || cause.getClass().getName().equals(CHANGED)
                    || LOST.contains(status(cause))) {
                return true;
            }
        }
        return false;
    }

    /** The HTTP status of an exception of S3A or of Amazon's SDK, otherwise 0. */
    private static int status(Throwable error) {
        String name = error.getClass().getName();
        if (!name.startsWith("org.apache.hadoop.fs.s3a.") && !name.startsWith("software.amazon.awssdk.")) {
            return 0;
        }
        try {
            return error.getClass().getMethod("statusCode").invoke(error) instanceof Integer status ? status : 0;
        } catch (NoSuchMethodException | IllegalAccessException | InvocationTargetException unknown) {
            return 0;
        }
    }

    private static FileAlreadyExistsException alreadyExists(Path path, Throwable cause) {
        FileAlreadyExistsException exists = new FileAlreadyExistsException(path.toString());
        exists.initCause(cause);
        return exists;
    }
}

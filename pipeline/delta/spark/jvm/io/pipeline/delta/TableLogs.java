package io.pipeline.delta;

import java.io.FileNotFoundException;
import java.io.IOException;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;

import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.delta.DeltaLog;
import org.apache.spark.sql.delta.DeltaLog$;
import org.apache.spark.sql.delta.LastCheckpointInfo;
import org.apache.spark.sql.delta.LastCheckpointInfo$;
import org.apache.spark.sql.delta.Snapshot;
import org.apache.spark.sql.delta.actions.Metadata;

import scala.Option;

/** What Delta does with the log of a table, and has no SQL statement for. Requests and answers are JSON. */
public final class TableLogs {

    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long DAY_MILLISECONDS = 86_400_000L;

    private TableLogs() {
    }

    /**
     * Writes a checkpoint of {@code location}. By default Delta only logs a failed one; here it is an error.
     *
     * <p>{@code version} is the version of the checkpoint; the log is not cleaned then. Without it the newest version
     * gets one, and Delta cleans the log afterwards, unless that would remove the commit {@code keep}, whose file is
     * {@code file}. The answer has the version, and as {@code kept} whether the clean-up was left out.
     */
    public static String checkpoint(SparkSession session, String request) throws IOException {
        JsonNode asked = JSON.readTree(request);
        SparkSession own = session.cloneSession();
        own.conf().set("spark.databricks.delta.checkpoint.exceptionThrowing.enabled", "true");
        DeltaLog log = DeltaLog$.MODULE$.forTable(own, asked.get("location").asText());
        Snapshot snapshot = log.update(false, Option.empty(), Option.empty());
        if (asked.hasNonNull("version") && asked.get("version").asLong() < snapshot.version()) {
            log.createCheckpointAtVersion(asked.get("version").asLong());
            return answer(asked.get("version").asLong(), true);
        }
        boolean isKept = asked.hasNonNull("version")
                || asked.hasNonNull("keep")
                && asked.get("keep").asLong() < snapshot.version()
                && expires(log, snapshot.metadata(), new Path(asked.get("file").asText()));
        if (isKept) {
            LastCheckpointInfo info = log.writeCheckpointFiles(snapshot, Option.empty());
            log.writeLastCheckpointFile(log, info, LastCheckpointInfo$.MODULE$.checksumEnabled(own));
        } else {
            log.checkpoint(snapshot, Option.empty());
        }
        return answer(snapshot.version(), isKept);
    }

    /** Lets Delta read the log at {@code location} from its files again. */
    public static String forget(SparkSession session, String request) throws IOException {
        DeltaLog$.MODULE$.invalidateCache(session, new Path(JSON.readTree(request).get("location").asText()));
        return "{}";
    }

    /** Whether Delta's clean-up, by full days in UTC, would remove this commit (MetadataCleanup.scala). */
    private static boolean expires(DeltaLog log, Metadata metadata, Path file) throws IOException {
        if (!log.enableExpiredLogCleanup(metadata)) {
            return false;
        }
        long expired = System.currentTimeMillis() - log.deltaRetentionMillis(metadata);
        try {
            long modified = file.getFileSystem(log.newDeltaHadoopConf()).getFileStatus(file).getModificationTime();
            return modified <= expired - expired % DAY_MILLISECONDS;
        } catch (FileNotFoundException gone) {
            return false;
        }
    }

    private static String answer(long version, boolean isKept) throws IOException {
        return JSON.writeValueAsString(JSON.createObjectNode().put("version", version).put("kept", isKept));
    }
}

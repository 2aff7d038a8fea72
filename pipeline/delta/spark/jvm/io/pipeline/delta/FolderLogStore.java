package io.pipeline.delta;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.ChecksumFileSystem;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocalFileSystem;
import org.apache.hadoop.fs.Path;

import io.delta.storage.HDFSLogStore;

/**
 * Delta's log on a disk of this machine. It reads and writes as Delta's own log store for it; only a listing differs.
 *
 * <p>Delta lists the log at each commit, from its newest checkpoint on. Its own log store asks the disk for the size and
 * the time of every file in the folder first, so that a commit costs more the longer the log is. This class asks only
 * for the files that are listed.
 */
public class FolderLogStore extends HDFSLogStore {

    public FolderLogStore(Configuration configuration) {
        super(configuration);
    }

    /**
     * The files in the folder of a path whose names do not come before its own, in the order of their names.
     *
     * @throws FileNotFoundException there is no such folder.
     */
    @Override
    public Iterator<FileStatus> listFrom(Path path, Configuration configuration) throws IOException {
        FileSystem files = path.getFileSystem(configuration);
        Path folder = path.getParent();
        if (!(files instanceof LocalFileSystem local)) {
            return super.listFrom(path, configuration);
        }
        String[] names = local.pathToFile(folder).list();
        if (names == null) { // no folder, or none that can be read: Hadoop has the error for it
            return super.listFrom(path, configuration);
        }
        Arrays.sort(names);
        List<FileStatus> found = new ArrayList<>();
        for (String name : names) {
            if (name.compareTo(path.getName()) < 0) {
                continue;
            }
            Path file = new Path(folder, new Path(null, null, name)); // a name may have a colon
            if (ChecksumFileSystem.isChecksumFile(file)) {
                continue;
            }
            try {
                found.add(files.getFileStatus(file));
            } catch (FileNotFoundException removed) {
                // It was removed since. A listing has it or lacks it.
            }
        }
        return found.iterator();
    }
}

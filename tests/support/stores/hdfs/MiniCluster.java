import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.ArrayDeque;
import java.util.Deque;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.SafeModeAction;
import org.apache.hadoop.hdfs.DistributedFileSystem;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.hdfs.protocol.HdfsConstants;

/** Runs a name node and two data nodes until standard input ends, and obeys its lines. */
public class MiniCluster {
    public static void main(String[] args) throws Exception {
        Configuration conf = new Configuration();
        conf.setBoolean("dfs.namenode.edits.noeditlogchannelflush", true);
        // A data node is dead when it has said nothing for 12 seconds, in place of 10 minutes.
        conf.setInt("dfs.heartbeat.interval", 1);
        conf.setInt("dfs.namenode.heartbeat.recheck-interval", 1000);
        MiniDFSCluster cluster = new MiniDFSCluster.Builder(conf, new File(args[0]))
            .nameNodePort(Integer.parseInt(args[1])).numDataNodes(2).build();
        cluster.waitActive();
        DistributedFileSystem files = cluster.getFileSystem();
        Deque<MiniDFSCluster.DataNodeProperties> stopped = new ArrayDeque<>();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        String line;
        while ((line = input.readLine()) != null) {
            String[] words = line.split(" ");
            switch (words[0]) {
                case "stop" -> stopped.push(cluster.stopDataNode(0));
                case "start" -> {
                    while (!stopped.isEmpty()) cluster.restartDataNode(stopped.pop(), true);
                    cluster.waitActive();
                }
                case "most-names" -> files.setQuota(
                    new Path(words[1]), Long.parseLong(words[2]), HdfsConstants.QUOTA_DONT_SET);
                case "most-bytes" -> files.setQuota(
                    new Path(words[1]), HdfsConstants.QUOTA_DONT_SET, Long.parseLong(words[2]));
                case "read-only" -> files.setSafeMode(SafeModeAction.ENTER);
                case "writable" -> files.setSafeMode(SafeModeAction.LEAVE);
                default -> throw new IllegalArgumentException(line);
            }
            System.out.println("done: " + line);
        }
        cluster.shutdown(true);
    }
}

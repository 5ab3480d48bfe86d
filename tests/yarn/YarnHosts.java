import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;
import org.apache.hadoop.yarn.server.resourcemanager.scheduler.fifo.FifoScheduler;

/**
 * A resource manager and a node manager in one process. Its clients' settings are written to the
 * folder that is given, in yarn-site.xml, when both are there.
 */
public final class YarnHosts {
    public static void main(String[] arguments) throws Exception {
        YarnConfiguration settings = new YarnConfiguration();
        settings.set("fs.defaultFS", "file:///");
        settings.set(YarnConfiguration.RM_SCHEDULER, FifoScheduler.class.getName());
        settings.setInt(YarnConfiguration.RM_SCHEDULER_MINIMUM_ALLOCATION_MB, 256);
        settings.setInt(YarnConfiguration.NM_PMEM_MB, 6144);
        settings.setInt(YarnConfiguration.NM_VCORES, 4);
        settings.setBoolean(YarnConfiguration.NM_VMEM_CHECK_ENABLED, false);
        settings.setBoolean(YarnConfiguration.NM_DISK_HEALTH_CHECK_ENABLE, false);
        MiniYARNCluster cluster = new MiniYARNCluster("yarn", 1, 1, 1);
        cluster.init(settings);
        cluster.start();
        if (!cluster.waitForNodeManagersToConnect(120_000)) {
            throw new IllegalStateException("the node manager did not connect");
        }
        Path whole = Path.of(arguments[0], "yarn-site.xml");
        Path begun = Path.of(arguments[0], "yarn-site.begun");
        try (var out = Files.newOutputStream(begun)) {
            new YarnConfiguration(cluster.getConfig()).writeXml(out);
        }
        Files.move(begun, whole, StandardCopyOption.ATOMIC_MOVE);
        Thread.currentThread().join();
    }
}

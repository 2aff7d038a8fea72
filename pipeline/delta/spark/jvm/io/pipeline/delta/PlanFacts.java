package io.pipeline.delta;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.delta.commands.cdc.CDCReader;
import org.apache.spark.sql.delta.files.TahoeLogFileIndex;
import org.apache.spark.sql.execution.SparkPlanInfo;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.sources.BaseRelation;
import scala.jdk.javaapi.CollectionConverters;

/**
 * What Spark's plans say of a frame, as JSON: its analyzed plan with the Delta tables that it reads, and the filters
 * that its executed plan pushes into scans.
 * No row is read.
 */
public final class PlanFacts {

    private static final ObjectMapper JSON = new ObjectMapper();

    private PlanFacts() {
    }

    /**
     * {@code plan}: the nodes of the analyzed plan, as Spark writes them. {@code scans}: for each leaf, in order, the
     * Delta table that it reads, otherwise null. The version of a change feed is null.
     */
    public static String analyzed(Dataset<?> frame) throws JsonProcessingException {
        LogicalPlan plan = frame.queryExecution().analyzed();
        ObjectNode facts = JSON.createObjectNode();
        facts.set("plan", JSON.readTree(plan.toJSON()));
        ArrayNode scans = facts.putArray("scans");
        CollectionConverters.asJava(plan.collectLeaves()).forEach(leaf -> scans.addPOJO(scan(leaf)));
        return JSON.writeValueAsString(facts);
    }

    /** For each scan of the executed plan its options {@code Location}, {@code PartitionFilters}, {@code PushedFilters}. */
    public static String executed(Dataset<?> frame) throws JsonProcessingException {
        List<Map<String, String>> found = new ArrayList<>();
        collect(SparkPlanInfo.fromSparkPlan(frame.queryExecution().executedPlan()), found);
        return JSON.writeValueAsString(found);
    }

    private static void collect(SparkPlanInfo plan, List<Map<String, String>> found) {
        Map<String, String> options = CollectionConverters.asJava(plan.metadata());
        if (options.containsKey("Location")) {
            Map<String, String> kept = new LinkedHashMap<>();
            for (String name : List.of("Location", "PartitionFilters", "PushedFilters")) {
                if (options.containsKey(name)) {
                    kept.put(name, options.get(name));
                }
            }
            found.add(kept);
        }
        CollectionConverters.asJava(plan.children()).forEach(child -> collect(child, found));
    }

    private static Map<String, Object> scan(LogicalPlan leaf) {
        if (!(leaf instanceof LogicalRelation logical)) {
            return null;
        }
        Map<String, Object> scan = new LinkedHashMap<>();
        BaseRelation relation = logical.relation();
        if (relation instanceof HadoopFsRelation files && files.location() instanceof TahoeLogFileIndex index) {
            scan.put("location", text(index.path()));
            scan.put("version", index.version());
        } else if (relation instanceof CDCReader.DeltaCDFRelation feed) {
            scan.put("location", text(feed.snapshotWithSchemaMode().snapshot().deltaLog().dataPath()));
            scan.put("version", null);
        } else {
            return null;
        }
        Map<String, String> columns = new LinkedHashMap<>();
        for (Attribute attribute : CollectionConverters.asJava(logical.output())) {
            columns.put(Long.toString(attribute.exprId().id()), attribute.name());
        }
        scan.put("columns", columns);
        return scan;
    }

    private static String text(Path path) {
        return path.toString();
    }
}

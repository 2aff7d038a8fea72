package io.pipeline.delta;

import java.io.IOException;
import java.util.List;
import java.util.Optional;

import org.apache.spark.connect.proto.Relation;
import org.apache.spark.sql.Encoders;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.Dataset$;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.connect.planner.SparkConnectPlanner;
import org.apache.spark.sql.connect.plugin.RelationPlugin;
import org.sparkproject.connect.protobuf.Any;
import org.sparkproject.connect.protobuf.ByteString;

/**
 * The requests of Connect clients to the other classes of this package. A classic session calls these itself.
 *
 * <p>A request is a relation with an extension: its type is the name of the request, and its value the relation that is
 * asked about, or text. The answer is a frame of one row with one text. A request is carried out when its relation is
 * planned, in the client's own session.
 */
public final class Requests implements RelationPlugin {

    @Override
    public Optional<LogicalPlan> transform(byte[] relation, SparkConnectPlanner planner) {
        try {
            Any request = Any.parseFrom(relation);
            String answer = answer(request.getTypeUrl(), request.getValue(), planner);
            return Optional.ofNullable(answer).map(text ->
                    planner.session().createDataset(List.of(text), Encoders.STRING()).logicalPlan());
        } catch (IOException error) {
            throw new IllegalArgumentException(error);
        }
    }

    /** The answer to a request. If it is not one of ours, null. */
    private static String answer(String type, ByteString value, SparkConnectPlanner planner) throws IOException {
        SparkSession session = planner.session();
        switch (type) {
            case "pipeline/plan-analyzed":
                return PlanFacts.analyzed(frame(value, planner));
            case "pipeline/plan-executed":
                return PlanFacts.executed(frame(value, planner));
            case "pipeline/log-checkpoint":
                return TableLogs.checkpoint(session, value.toStringUtf8());
            case "pipeline/log-forget":
                return TableLogs.forget(session, value.toStringUtf8());
            default:
                return null;
        }
    }

    private static Dataset<Row> frame(ByteString relation, SparkConnectPlanner planner) throws IOException {
        return Dataset$.MODULE$.ofRows(planner.session(), planner.transformRelation(Relation.parseFrom(relation)));
    }
}

"""A graph of tasks in which two parts of a model wait for each other; see the README."""

import resilient_ps as ps

graph = ps.Graph("two-parts", steps=10)
graph.add("left", width=2)  # two lanes: two tasks of a step at the same time
graph.add("right")
graph.after("right", "left")  # right's step t comes after step t of both lanes of left
graph.after("left", "right", lag=1)  # and left's step t after step t - 1 of right

with ps.local_cluster(servers=2) as cluster, cluster.connect() as client:
    with client.tasks(graph) as tasks:  # in as many processes as you like
        table = tasks.dense_table("weights", shape=(3,), optimiser=ps.SGD(lr=0.1))
        for task in tasks:
            table.push(table.pull() - task.n)  # counts when the task ends: as a whole, and once
    print(client.table("weights").pull())

// The list of runs of `sentinel serve`.

async function showRuns() {
  const answer = await (await fetch("api/runs", { cache: "no-store" })).json();
  const links = answer.runs.map((run) => {
    const link = document.createElement("a");
    link.href = `runs/${encodeURIComponent(run.run)}/`;
    link.textContent = `${run.run} ${run.state}`;
    const item = document.createElement("li");
    item.append(link);
    return item;
  });
  const list = document.createElement("ul");
  list.append(...links);
  document.getElementById("runs").replaceChildren(list);
}

showRuns();

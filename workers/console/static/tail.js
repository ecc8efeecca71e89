// The live tail: each second, while the page is visible, it asks for the events since the last answer and puts them on top.
"use strict";
{
  const MOST_ROWS = 200;
  const MOST_OPEN = 50;
  const table = document.querySelector("table[data-tail]");
  const rows = table.tBodies[0];
  const blank = document.getElementById("row").content.firstElementChild;
  const note = document.getElementById("tail-note");
  const empty = document.getElementById("empty");
  const shown = new Set([...rows.rows].map((row) => row.dataset.at));
  let place = table.dataset.place;
  let timer = 0;
  let isAsking = false;

  // A row must not move away under the pointer, or from the keyboard. Nothing is missed: the place stays as it is.
  const isHeld = () => rows.contains(document.activeElement) || (matchMedia("(hover: hover)").matches && rows.matches(":hover"));

  const showStatus = (row, status) => {
    const state = row.querySelector(".state");
    state.className = `state ${status.replaceAll(" ", "-")}`;
    state.textContent = status;
  };

  const rowOf = (event) => {
    const row = blank.cloneNode(true);
    row.dataset.at = event.at;
    for (const name of ["topic", "resource", "source"]) row.querySelector(`[data-field=${name}]`).textContent = event[name];
    for (const name of ["store", "event"]) {
      const link = row.querySelector(`[data-field=${name}]`);
      link.textContent = event[name];
      link.href = link.getAttribute("href").replace(/-$/, encodeURIComponent(event[name]));
    }
    const time = row.querySelector("time");
    time.dateTime = event.received;
    time.title = event.utc;
    showStatus(row, event.status);
    showLocalTimes(row);
    return row;
  };

  const ask = async () => {
    const address = new URL(table.dataset.tail, location.href);
    const open = [...rows.rows].filter((row) => row.querySelector(".state.open")).slice(0, MOST_OPEN);
    address.searchParams.set("place", place);
    address.searchParams.set("rows", open.map((row) => row.dataset.at).join("-"));
    const answer = await fetch(address, { redirect: "manual" });
    if (answer.type === "opaqueredirect") location.reload(); // to the login
    if (!answer.ok) throw new Error(answer.statusText);
    const found = await answer.json();
    for (const row of open) {
      if (found.statuses[row.dataset.at]) showStatus(row, found.statuses[row.dataset.at]);
    }
    for (const event of found.rows) {
      if (shown.has(event.at)) continue;
      shown.add(event.at);
      rows.prepend(rowOf(event));
    }
    while (rows.rows.length > MOST_ROWS) {
      shown.delete(rows.lastElementChild.dataset.at);
      rows.lastElementChild.remove();
    }
    empty.hidden = rows.rows.length > 0;
    place = found.place;
    note.textContent = found.note;
    return found.more;
  };

  const go = async () => {
    clearTimeout(timer);
    if (isAsking || document.hidden) return; // when it is visible again, this is called again
    isAsking = true;
    let pause = 1000;
    try {
      if (!isHeld() && (await ask())) pause = 0;
    } catch {
      note.textContent = "The console does not answer. It is asked again; no event will be missed.";
      pause = 3000;
    }
    isAsking = false;
    timer = setTimeout(go, pause);
  };

  document.addEventListener("visibilitychange", go);
  go();
}

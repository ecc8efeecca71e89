// Every page is readable without this script. It shows times in the reader's time zone and reloads the overview.
"use strict";

const sameDay = (a, b) => a.toDateString() === b.toDateString();

function showLocalTimes(within) {
  for (const element of within.querySelectorAll("time[datetime]")) {
    const at = new Date(element.dateTime);
    if (Number.isNaN(at.getTime())) continue;
    const time = at.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
    const date = at.toLocaleDateString([], { day: "numeric", month: "short", year: "numeric" });
    element.textContent = sameDay(at, new Date()) ? time : `${date} ${time}`;
  }
}

showLocalTimes(document);

// Reload only while a person looks at the page and does nothing on it. The notice of an action is not shown again.
const seconds = Number(document.body.dataset.refresh || 0);
if (seconds) {
  setInterval(() => {
    const isBusy = document.querySelector("details.act[open], details.figures[open]") || document.activeElement.closest("input, select");
    if (document.hidden || isBusy || String(getSelection())) return;
    const address = new URL(location.href);
    if (!address.searchParams.has("done")) return location.reload();
    address.searchParams.delete("done");
    location.replace(address);
  }, seconds * 1000);
}

// Without this script, the text is selected and copied by hand.
for (const button of document.querySelectorAll("button[data-copies]")) {
  button.hidden = false;
  button.addEventListener("click", async () => {
    const source = document.getElementById(button.dataset.copies);
    source.select();
    try {
      await navigator.clipboard.writeText(source.value);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Selected: press Ctrl+C";
    }
  });
}

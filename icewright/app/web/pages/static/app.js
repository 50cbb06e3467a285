// What the pages gain where scripts run: a theme that stays, ages that go on, parts that follow what happens.
const root = document.documentElement;

function themed(name) {
  root.dataset.theme = name;
  document.cookie = `icewright_theme=${name}; path=/; max-age=31536000; samesite=lax`;
  document.dispatchEvent(new CustomEvent("themed"));
}

function isDark() {
  return root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

for (const button of document.querySelectorAll("[data-theme-toggle]")) {
  button.hidden = false;
  button.setAttribute("aria-pressed", String(isDark()));
  button.addEventListener("click", () => {
    themed(isDark() ? "light" : "dark");
    button.setAttribute("aria-pressed", String(isDark()));
  });
}

// ages go by the clock of the service: that of the browser may be wrong
const SKEW = root.dataset.now ? Date.now() - Date.parse(root.dataset.now) : 0;
const STEPS = [[172800, 86400, "days"], [3600, 3600, "h"], [60, 60, "min"]];

function aged() {
  for (const time of document.querySelectorAll("time[datetime]:not([data-fixed])")) {
    const seconds = (Date.now() - SKEW - Date.parse(time.dateTime)) / 1000;
    const far = Math.abs(seconds);
    const step = STEPS.find(([least]) => far >= least);
    const text = step ? `${Math.round(far / step[1])} ${step[2]}` : "";
    const said = seconds < 0 ? (text ? `in ${text}` : "in a moment") : text ? `${text} ago` : "just now";
    if (time.textContent !== said) time.textContent = said;
  }
}
setInterval(aged, 10000);

// A part that follows: what was opened in it stays open, what was filled in stays, and what has the focus keeps it.
const FIELDS = ":is(input, select)[data-focus]";

function edited(field) {
  if (field.type === "checkbox") return field.checked !== field.defaultChecked;
  if (field.matches("select")) return [...field.selectedOptions].some((option) => !option.defaultSelected);
  return field.value !== field.defaultValue;
}

function replaced(part, html) {
  const open = new Set([...part.querySelectorAll("details[open][data-key]")].map((one) => one.dataset.key));
  const scrolls = new Map([...part.querySelectorAll("[data-keep]")].map((one) => [one.dataset.keep, one.scrollTop]));
  const focus = part.contains(document.activeElement) ? document.activeElement.dataset.focus : undefined;
  const fields = new Map([...part.querySelectorAll(FIELDS)].map((one) => [one.dataset.focus, one]));
  part.innerHTML = html;
  for (const one of part.querySelectorAll(FIELDS)) {
    const before = fields.get(one.dataset.focus);
    if (!before || !edited(before)) continue;
    if (before.type === "checkbox") one.checked = before.checked;
    else one.value = before.value;
  }
  for (const one of part.querySelectorAll("details[data-key]")) if (open.has(one.dataset.key)) one.open = true;
  for (const one of part.querySelectorAll("[data-keep]")) one.scrollTop = scrolls.get(one.dataset.keep) ?? 0;
  heads();
  if (focus) part.querySelector(`[data-focus="${CSS.escape(focus)}"]`)?.focus();
}

const FIRST_WAIT = 2000, LONGEST_WAIT = 30000;  // milliseconds

for (const part of document.querySelectorAll("[data-live]")) {
  const state = document.querySelector("[data-live-state]");
  const say = (text) => { if (state) state.textContent = text; };
  let source, again, since, wait = FIRST_WAIT, ended = false, seen = false;
  const close = () => { source?.close(); clearTimeout(again); };
  const follow = () => {
    close();
    if (ended || document.hidden) return;  // a browser keeps six streams of a server open, and the seventh page waits
    source = new EventSource(part.dataset.live);
    source.addEventListener("open", () => { since = undefined; wait = FIRST_WAIT; say("live"); });
    source.addEventListener("part", (event) => {
      if (seen) document.querySelector("p.flash[data-flash]")?.remove();  // it told what was true before
      seen = true;
      replaced(part, event.data);
    });
    source.addEventListener("end", () => { ended = true; close(); say(""); });
    source.addEventListener("error", async () => {
      if (ended) return;
      since ??= new Date(Date.now() - SKEW).toISOString().slice(11, 19);
      say(`not live since ${since}: reconnecting`);
      if (source.readyState !== EventSource.CLOSED) return;  // the browser tries again by itself
      // what answered was no stream, such as a proxy while the service restarts, or the service to whom it does not know
      again = setTimeout(follow, wait);
      wait = Math.min(2 * wait, LONGEST_WAIT);
      const asked = { method: "HEAD", redirect: "manual", headers: { accept: "text/html" } };
      const page = await fetch(location.href, asked).catch(() => undefined);
      if (page?.type !== "opaqueredirect") return;
      close();
      say(`not live since ${since}: your login has ended, load the page again`);
    });
  };
  follow();
  document.addEventListener("visibilitychange", follow);
  addEventListener("pagehide", close);
}

// "/" goes to the search of tables, unless somebody is writing.
const find = document.querySelector("[data-find]");
addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || !find) return;
  if (event.target.closest?.("input, select, textarea, [contenteditable]")) return;
  event.preventDefault();
  find.focus();
  find.select();
});

// That search offers the tables that have in their names what is written.
if (find) {
  const names = document.createElement("datalist");
  names.id = "found";
  find.after(names);
  find.setAttribute("list", names.id);
  let pause;
  find.addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(async () => {
      const asked = new URLSearchParams({ search: find.value.trim(), limit: 10 });
      const answer = await fetch(`/api/v1/tables?${asked}`).catch(() => undefined);
      const { items } = answer?.ok ? await answer.json() : { items: [] };
      names.replaceChildren(...items.map(({ table }) => Object.assign(document.createElement("option"), { value: table })));
    }, 150);
  });
}

// A search that hides what does not match, and opens the groups of what does.
for (const search of document.querySelectorAll("[data-filter]")) {
  search.closest("[hidden]").hidden = false;
  const items = [...document.querySelectorAll(search.dataset.filter)];
  const groups = [...new Set(items.map((item) => item.closest("details")))];
  const before = new Map(groups.map((group) => [group, group.open]));
  search.addEventListener("keydown", (event) => { if (event.key === "Enter") event.preventDefault(); });
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    for (const item of items) item.hidden = !words.every((word) => item.textContent.toLowerCase().includes(word));
    for (const group of groups) {
      group.hidden = items.every((item) => item.hidden || item.closest("details") !== group);
      group.open = words.length ? !group.hidden : before.get(group);
    }
  });
}

// A box at the head of a list selects all that it shows. It comes with the list, also when that is replaced.
function heads() {
  for (const all of document.querySelectorAll("[data-picks]")) {
    const boxes = [...document.getElementsByName(all.dataset.picks)];
    all.hidden = false;
    all.checked = boxes.length > 0 && boxes.every((box) => box.checked);
    all.indeterminate = !all.checked && boxes.some((box) => box.checked);
  }
}
heads();
addEventListener("change", ({ target }) => {
  if (target.dataset.picks) for (const box of document.getElementsByName(target.dataset.picks)) box.checked = target.checked;
  heads();
});

// A page that answers a form takes the address of where it leads back to: neither Back nor a reload sends the form anew.
const back = document.querySelector("[data-back]");
if (back) history.replaceState(null, "", back.href);

// A form is sent once. The document listens: what a part that follows has replaced has no listener of its own.
addEventListener("submit", ({ target }) => setTimeout(() => {
  if (target.matches("form[data-once]")) for (const button of target.querySelectorAll("button")) button.disabled = true;
}));
addEventListener("pageshow", (event) => {
  if (event.persisted) for (const button of document.querySelectorAll("form[data-once] button")) button.disabled = false;
});

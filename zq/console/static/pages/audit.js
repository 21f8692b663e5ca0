// SPDX-License-Identifier: Apache-2.0
// Who has changed or destroyed what, and when, the latest first: as `zq audit` lists it.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../api.js";
import { useLive } from "../live.js";
import { html } from "../parts/html.js";
import { Rows } from "../parts/paged.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { at, go, to, toTopic } from "../route.js";
import { session } from "../session.js";
import { count, moment, visible } from "../text.js";

const EVERY = 5;
const PAGE = 50;
// Rows that the document has at most.
const MOST = 1000;
const WITHIN = [["", "All time"], ["3600", "Last hour"], ["86400", "Last 24 hours"], ["604800", "Last 7 days"]];
// Addresses of what has a page.
const HREFS = new Map([["queue", to], ["topic", toTopic]]);
// What was done, by the end of the route that was asked for; else by the method.
const ENDS = ["purge", "redrive", "replay", "share", "revoke", "rotate", "rekey", "confirm"];
const METHODS = new Map([["POST", "create"], ["PUT", "set"], ["PATCH", "change"], ["DELETE", "delete"]]);

/** The page. */
export function Audit({ route }) {
  const list = useEntries(route.query.within);
  return html`<div class="title"><h1>Audit</h1></div>
    <div class="row tools bottom">
      <${Within} route=${route} />
      ${list.news > 0 && html`<button type="button" onClick=${list.update}>${count(list.news)}${list.news === PAGE ? "+" : ""} new: show</button>`}
    </div>
    ${waiting(list.found) ?? html`<${Stale} found=${list.found} /><${Table} route=${route} list=${list} />`}`;
}

async function read(since, marker) {
  const { entries, links } = await get("audit", { limit: PAGE, since, marker });
  return { entries, next: links[0] && new URL(links[0].href, location.href).searchParams.get("marker") };
}

/** The first page follows the audit unless the reader is at work in it; then what is new waits. */
function useEntries(within) {
  const since = useMemo(() => within && new Date(Date.now() - within * 1000).toISOString(), [within]);
  const over = useRef(false);
  const [shown, setShown] = useState(null);
  const found = useLive(() => read(since), EVERY, [since]);
  const fresh = found.value;
  useEffect(() => setShown(null), [since]);
  useEffect(() => {
    if (fresh && !(shown?.entries.length && (over.current || shown.more))) setShown(fresh);
  }, [fresh]);
  const more = async () => {
    const { entries, next } = await read(since, shown.next);
    setShown({ entries: [...shown.entries, ...entries], next, more: true });
  };
  return { found, shown: shown ?? fresh, news: news(fresh, shown), over, more, update: () => setShown(fresh) };
}

function identity(entry) {
  return [entry.time, entry.request_id, entry.project, entry.rule, entry.why].join(" ");
}

function news(fresh, shown) {
  if (!fresh || !shown?.entries.length) return 0;
  const first = identity(shown.entries[0]);
  const place = fresh.entries.findIndex((entry) => identity(entry) === first);
  return place === -1 ? fresh.entries.length : place;
}

function Within({ route }) {
  const chosen = (event) => go(at(route.project, "audit", { within: event.target.value }));
  return html`<label class="field short"><span>Period</span>
    <select value=${route.query.within ?? ""} onChange=${chosen}>${WITHIN.map(([seconds, name]) => html`<option key=${seconds} value=${seconds}>${name}</option>`)}</select>
  </label>`;
}

function Table({ route, list }) {
  const { entries, next } = list.shown;
  if (!entries.length) return html`<${Nothing} within=${route.query.within} />`;
  const all = session.me.admin;
  const columns = ["Time", all && "Project", "User", "Action", "Object", "#Messages", "Outcome", "Request"].filter(Boolean);
  const over = (is) => () => (list.over.current = is);
  return html`<div onPointerEnter=${over(true)} onPointerLeave=${over(false)}>
      <${Rows} name="Changes" columns=${columns}>${entries.map((entry) => html`<${Row} key=${identity(entry)} entry=${entry} route=${route} all=${all} />`)}</${Rows}>
    </div>
    ${next && entries.length < MOST && html`<button type="button" onClick=${list.more}>Load more</button>`}
    ${next && entries.length >= MOST && html`<p class="quiet">Only the latest ${count(MOST)} entries are shown. To list all, run <code>zq audit --limit 0</code>.</p>`}`;
}

function Nothing({ within }) {
  return html`<${Empty} title=${within ? "No audit entries in this period" : "No audit entries"}>
    <p>The audit records purges, deletions, redrives, replays, and changes of metadata, subscriptions, tokens and quotas.
      The server keeps entries for <code>[log] audit_ttl</code> seconds. Rejected requests appear only in the server's audit log.</p>
  </${Empty}>`;
}

function Row({ entry, route, all }) {
  return html`<tr data-row>
    <th scope="row" title=${moment(entry.time)}>${moment(entry.time).slice(0, 19)}</th>
    ${all && html`<td data-name="Project">${visible(entry.project || "–")}</td>`}
    <td data-name="User">${visible(entry.credential || "anonymous")} ${entry.peer && html`<span class="quiet">from ${visible(entry.peer)}</span>`}</td>
    <td class="word" data-name="Action">${did(entry)}</td>
    <td data-name="Object"><${What} entry=${entry} route=${route} /></td>
    <td class="number" data-name="Messages">${count(entry.messages)}</td>
    <td data-name="Outcome"><${Outcome} entry=${entry} /></td>
    <td class="id" data-name="Request">${visible(entry.request_id || "–")}</td>
  </tr>`;
}

function did({ method, route }) {
  const names = route.split("/").slice(3).filter((name) => !name.startsWith("{"));
  const end = names.at(-1);
  const about = ["subscriptions", "deliveries"].find((part) => names.includes(part));
  const act = end === "secret" ? "renew secret" : ENDS.includes(end) ? end : METHODS.get(method) ?? "–";
  return about ? `${act} (${about})` : act;
}

function What({ entry, route }) {
  const [kind, name] = parted(entry.object);
  const href = HREFS.get(kind);
  if (!href || entry.project !== route.project) return visible(entry.object || "–");
  return html`${kind} <a href=${href(route.project, name)}>${visible(name)}</a>`;
}

function parted(object) {
  const space = object.indexOf(" ");
  return [object.slice(0, space), object.slice(space + 1)];
}

function Outcome({ entry }) {
  const kind = entry.outcome === "done" ? "mark" : "mark delayed";
  return html`<span class=${kind}>${visible(entry.outcome)}</span>${entry.why && html` <span class="quiet">${visible(entry.why)}</span>`}`;
}

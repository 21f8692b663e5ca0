// SPDX-License-Identifier: Apache-2.0
// The topics of a project, by name, each with what the log has of it; and the tail of several.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, topicPath } from "../api.js";
import { useClock, useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { useCounts } from "../parts/counts.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { age, count, several, visible } from "../text.js";
import { at, go, toTopic } from "../route.js";
import { askToCreate, askToDelete, askToPurge } from "./queueacts.js";
import { Following } from "./tail.js";

const PAGE = 20;
const EVERY = 10;
const PATTERN = "(?!.*\\*{3})[A-Za-z0-9_.*\\-]{1,64}";

/** The page. */
export function Topics({ route }) {
  const { project, query } = route;
  const title = query.tail ? html`<p class="crumb"><a href=${at(project, "topics")}>Topics</a></p>` : "";
  return html`${title}
    <div class="title"><h1>${query.tail ? `Tail of ${visible(query.tail)}` : "Topics"}</h1><${Chooser} project=${project} match=${query.tail} /></div>
    ${query.tail ? html`<${Following} match=${query.tail} topic="" query=${query} href=${(other) => at(project, "topics", other)} />` : html`<${List} route=${route} />`}`;
}

function Chooser({ project, match = "**" }) {
  const [text, setText] = useState(match);
  const open = (event) => {
    event.preventDefault();
    go(at(project, "topics", { tail: text }));
  };
  return html`<form class="row" onSubmit=${open}>
    <label class="row"><span class="quiet">Topics that match</span>
      <input class="match" type="text" autocomplete="off" spellcheck=${false} required pattern=${PATTERN} title="** is all, news.* is news.eu, news.** is news.eu.de, too" value=${text} onInput=${(event) => setText(event.target.value)} />
    </label>
    <button type="submit">Tail</button>
  </form>`;
}

function List({ route }) {
  const list = useTopics(route.query.name ?? "");
  const [chosen, setChosen] = useState([]);
  const selected = chosen.filter((one) => list.rows.some((row) => row.name === one));
  const gone = (names) => {
    list.drop(names);
    setChosen([]);
  };
  return html`<div class="row tools">
      <${Search} route=${route} />
      <${Act} rule="topics:create" kind="main" onClick=${() => askToCreate(route.project, "topic")}>Create a topic</${Act}>
      <${Selected} names=${selected} gone=${gone} />
    </div>
    <${Stale} found=${list.found} />
    ${waiting(list.found) ?? html`<${Table} route=${route} list=${list} chosen=${selected} choose=${setChosen} />`}`;
}

/** The one place that knows how topics are listed. `rows`: with `name`, `ttl` and `counts`, undefined = not known yet. */
function useTopics(name) {
  const [more, setMore] = useState({ rows: [], next: undefined });
  const query = { limit: PAGE, detailed: true, name };
  const found = useLive(() => get("topics", query), EVERY, [name]);
  useEffect(() => setMore({ rows: [], next: undefined }), [name]);
  const first = found.value?.topics ?? [];
  const last = first.at(-1)?.name ?? "";
  const listed = [...first, ...more.rows.filter((row) => row.name > last)];
  const next = more.next === undefined ? nextOf(found.value, name) : more.next;
  const load = async () => {
    const page = await get("topics", { ...query, marker: next });
    setMore({ rows: [...listed, ...page.topics], next: nextOf(page, name) });
  };
  const drop = (names) => {
    setMore({ ...more, rows: more.rows.filter((row) => !names.includes(row.name)) });
    found.again();
  };
  const counts = useCounts(listed.map((row) => topicPath(row.name, "/stats")));
  const rows = listed.map((row) => ({ name: row.name, ttl: row.metadata._default_message_ttl, counts: counts.get(topicPath(row.name, "/stats")) }));
  return { found, rows, next, load, drop };
}

/** Where the next page begins; null if this is the last. A page of a search may end early. */
function nextOf(page, name) {
  const link = page?.links[0]?.href;
  const more = link && (name || page.topics.length >= PAGE);
  return more ? new URL(link, location.href).searchParams.get("marker") : null;
}

function Search({ route }) {
  const { name = "" } = route.query;
  const [text, setText] = useState(name);
  const timer = useRef(0);
  useEffect(() => setText(name), [name]);
  const typed = (event) => {
    setText(event.target.value);
    clearTimeout(timer.current);
    timer.current = setTimeout(() => go(at(route.project, "topics", { name: event.target.value }), true), 300);
  };
  return html`<label class="search">
    <span class="hidden">Part of a topic's name</span>
    <input type="search" data-search placeholder="Part of a name  ( / )" autocomplete="off" spellcheck=${false} value=${text} onInput=${typed} />
  </label>`;
}

function Selected({ names, gone }) {
  if (!names.length) return null;
  return html`<span class="quiet">${several(names.length, "topic")} selected</span>
    <${Act} rule="topics:purge" onClick=${() => askToPurge(names, gone, "topic")}>Purge…</${Act}>
    <${Act} rule="topics:delete" kind="danger" onClick=${() => askToDelete(names, gone, "topic")}>Delete…</${Act}>`;
}

function Table({ route, list, chosen, choose }) {
  const now = useClock();
  if (!list.rows.length) return html`<${Nothing} route=${route} />`;
  const row = (topic) => html`<${Row} key=${topic.name} route=${route} topic=${topic} now=${now} chosen=${chosen} choose=${choose} />`;
  const load = () => list.load().catch((fault) => announce(fault.message, true));
  return html`<div class="scroll" role="region" aria-label="Topics" tabindex="0">
      <table class="cards">
        <thead>
          <tr><th scope="col"><span class="hidden">Select</span></th><th scope="col">Name</th><th scope="col" class="number">Messages</th>
          <th scope="col" class="number">First</th><th scope="col" class="number">Last</th><th scope="col" class="number">Life (ttl)</th>
          <th scope="col" class="number">Counted</th></tr>
        </thead>
        <tbody>${list.rows.map(row)}</tbody>
      </table>
    </div>
    <p class="quiet">
      ${several(list.rows.length, "topic")} loaded, by name. First, last: how long ago the log's messages were published.
      ${list.next && html` <button type="button" onClick=${load}>Load more</button>`}
    </p>`;
}

function Row({ route, topic, now, chosen, choose }) {
  const { name, counts: seen } = topic;
  const checked = chosen.includes(name);
  const toggle = () => choose(checked ? chosen.filter((one) => one !== name) : [...chosen, name]);
  const late = seen && now - seen.at > 10000;
  return html`<tr data-row class=${checked ? "chosen" : undefined}>
    <td><label class="tick"><input type="checkbox" aria-label=${`Select ${name}`} checked=${checked} onChange=${toggle} /></label></td>
    <th scope="row"><a href=${toTopic(route.project, name)}>${visible(name)}</a></th>
    <td class="number" data-name="Messages">${count(seen?.total)}</td>
    <td class="number" data-name="First">${age(seen?.oldest?.age)}</td>
    <td class="number" data-name="Last">${age(seen?.newest?.age)}</td>
    <td class="number" data-name="Life (ttl)">${age(topic.ttl)}</td>
    <td class="number quiet" data-name="Counted">${seen ? (late ? `${age((now - seen.at) / 1000)} ago` : "now") : "…"}</td>
  </tr>`;
}

function Nothing({ route }) {
  if (route.query.name) {
    return html`<${Empty} title="No topic has that in its name"><p>The search is for a part of a name, and case matters.</p></${Empty}>`;
  }
  return html`<${Empty} title="This project has no topics">
    <p>A topic begins with its first message: <code>zq topic publish --project ${visible(route.project)} news '{"hello": 1}'</code></p>
    <p><${Act} rule="topics:create" kind="main" onClick=${() => askToCreate(route.project, "topic")}>Create a topic</${Act}></p>
  </${Empty}>`;
}

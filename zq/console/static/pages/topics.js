// SPDX-License-Identifier: Apache-2.0
// The topics of a project with their rates, each with what the log has of it, and the tail of several; and one topic.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, topicPath } from "../api.js";
import { useClock, useLive } from "../live.js";
import { Act } from "../parts/act.js";
import { Counted, Head, Pages, Search, useFigured } from "../parts/figured.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { age, clock, count, rate, visible } from "../text.js";
import { at, go, toTopic } from "../route.js";
import { Log, sequenceOf } from "./log.js";
import { Metadata } from "./metadata.js";
import { Post } from "./post.js";
import { askToCreate, askToDelete, askToPurge, Nothing, Selected } from "./queueacts.js";
import { Following } from "./tail.js";

// Topics of a page: each of them is counted.
const HOW = { usual: "name", size: 20, every: 10 };
// Seconds between two requests for counts.
const COUNTS_EVERY = 1.25;
const FIGURES_EVERY = 3;
const RATES_EVERY = 10;
const METADATA_EVERY = 20;
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
    <label class="row"><span class="quiet">Topic pattern</span>
      <input class="match" type="text" autocomplete="off" spellcheck=${false} required pattern=${PATTERN} title="* matches one part of a name, ** matches any number: news.* matches news.eu, news.** also matches news.eu.de" value=${text} onInput=${(event) => setText(event.target.value)} />
    </label>
    <button type="submit">Tail</button>
  </form>`;
}

function List({ route }) {
  const list = useFigured(route, HOW);
  const counts = useCounts(list.rows.map(({ name }) => name));
  const [chosen, setChosen] = useState([]);
  const selected = chosen.filter((one) => list.rows.some((row) => row.name === one));
  const gone = (names) => {
    list.drop(names);
    setChosen([]);
  };
  return html`<div class="row tools">
      <${Search} route=${route} noun="topic" />
      <${Act} rule="topics:create" kind="main" onClick=${() => askToCreate(route.project, "topic")}>Create a topic</${Act}>
      <${Selected} names=${selected} gone=${gone} kind="topic" /> <${Counted} list=${list} noun="topic" />
    </div>
    <${Stale} found=${list.found} />
    ${waiting(list.found) ?? html`<${Table} route=${route} list=${list} counts=${counts} chosen=${selected} choose=${setChosen} />`}`;
}

/** What the log has of each topic, and when that was asked: of those that are not known, then of the one asked longest ago. */
function useCounts(names) {
  const [known, wanted] = [useRef(new Map()), useRef(names)];
  wanted.current = names;
  const unknown = () => wanted.current.filter((name) => !known.current.has(name));
  const look = async (name) => {
    const { messages } = await get(topicPath(name, "/stats"));
    known.current.set(name, { ...messages, at: Date.now() });
  };
  const load = async () => {
    const oldest = wanted.current.toSorted((one, other) => known.current.get(one)?.at - known.current.get(other)?.at);
    await Promise.all((unknown().length ? unknown() : oldest.slice(0, 1)).map(look));
    return new Map(known.current);
  };
  const found = useLive(load, COUNTS_EVERY, []);
  const missing = unknown().length > 0;
  useEffect(() => void (missing && found.again()), [missing, found.at]);
  return found.value ?? new Map();
}

function Table({ route, list, counts, chosen, choose }) {
  const now = useClock();
  if (!list.rows.length) return html`<${Nothing} route=${route} kind="topic" command="topic publish" sample="news" />`;
  const row = (topic) => html`<${Row} key=${topic.name} route=${route} topic=${topic} seen=${counts.get(topic.name)} now=${now} chosen=${chosen} choose=${choose} />`;
  return html`<div class="scroll" role="region" aria-label="Topics" tabindex="0">
      <table class="cards">
        <thead>
          <tr><th scope="col"><span class="hidden">Select</span></th><${Head} route=${route} name="Name" sort="name" usual=${HOW.usual} />
          <th scope="col" class="number">Messages</th><th scope="col" class="number">Oldest</th><th scope="col" class="number">Newest</th>
          <${Head} route=${route} name="In/s" sort="in" usual=${HOW.usual} /><th scope="col" class="number">Counted</th></tr>
        </thead>
        <tbody>${list.rows.map(row)}</tbody>
      </table>
    </div>
    <${Pages} list=${list} />
    <p class="quiet">Oldest and newest: time since the message was published.</p>`;
}

function Row({ route, topic, seen, now, chosen, choose }) {
  const { name } = topic;
  const checked = chosen.includes(name);
  const toggle = () => choose(checked ? chosen.filter((one) => one !== name) : [...chosen, name]);
  const late = seen && now - seen.at > 10000;
  return html`<tr data-row class=${checked ? "chosen" : undefined}>
    <td><label class="tick"><input type="checkbox" aria-label=${`Select ${name}`} checked=${checked} onChange=${toggle} /></label></td>
    <th scope="row"><a href=${toTopic(route.project, name)}>${visible(name)}</a></th>
    <td class="number" data-name="Messages">${count(seen?.total)}</td>
    <td class="number" data-name="Oldest">${age(seen?.oldest?.age)}</td>
    <td class="number" data-name="Newest">${age(seen?.newest?.age)}</td>
    <td class="number" data-name="In/s">${rate(topic.in)}</td>
    <td class="number quiet" data-name="Counted">${seen ? (late ? `${age((now - seen.at) / 1000)} ago` : "just now") : "…"}</td>
  </tr>`;
}

/** The page of one. */
export function Topic({ route }) {
  const { topic, project } = route;
  const stats = useLive(async () => (await get(topicPath(topic, "/stats"))).messages, FIGURES_EVERY, [topic]);
  const published = useLive(() => rateOf(topic), RATES_EVERY, [topic]);
  const metadata = useLive(() => get(topicPath(topic)), METADATA_EVERY, [topic]);
  const away = () => go(at(project, "topics"));
  return html`<p class="crumb"><a href=${at(project, "topics")}>Topics</a></p>
    <div class="title">
      <h1>${visible(topic)}</h1>
      <div class="row">
        <${Act} rule="topics:purge" onClick=${() => askToPurge([topic], stats.again, "topic")}>Purge…</${Act}>
        <${Act} rule="topics:delete" kind="danger" onClick=${() => askToDelete([topic], away, "topic")}>Delete…</${Act}>
      </div>
    </div>
    <${Stale} found=${stats} />
    ${waiting(stats) ?? html`<${Tiles} stats=${stats} lately=${published.value} />`}
    ${metadata.value && html`<${Words} metadata=${metadata.value} />`}
    <${Tabs} route=${route} />
    <${Shown} route=${route} metadata=${metadata} stats=${stats} />`;
}

/** Messages a second lately; null where it is not known. */
async function rateOf(topic) {
  const { topics } = await get("figures/queues", { kind: "topics", name: topic, sort: "name", limit: 100 });
  return topics.find(({ name }) => name === topic)?.in ?? null;
}

function Tiles({ stats, lately }) {
  const now = useClock();
  const { total, oldest, newest } = stats.value;
  const mean = meanOf(stats.value);
  const late = stats.fault !== null || now - stats.at > 10000;
  return html`<section aria-label="Figures" class=${late ? "tiles stale" : "tiles"}>
    <div class="tile"><span class="name">Messages in the log</span><span class="figure">${count(total)}</span></div>
    <${Edge} name="First sequence" edge=${oldest} /> <${Edge} name="Last sequence" edge=${newest} />
    <div class="tile"><span class="name">Published per second</span><span class="figure">${rate(lately)}</span><span class="quiet">${mean !== null && `${rate(mean)} on average`}</span></div>
    ${late && html`<p class="quiet asof">As of ${clock(stats.at)}, ${age((now - stats.at) / 1000)} ago.</p>`}
  </section>`;
}

function Edge({ name, edge }) {
  return html`<div class="tile"><span class="name">${name}</span><span class="figure">${edge ? String(sequenceOf(edge)) : "–"}</span><span class="quiet">${edge && `published ${age(edge.age)} ago`}</span></div>`;
}

/** Messages a second between the first and the last; null where they are too few, or too near each other. */
function meanOf({ total, oldest, newest }) {
  const seconds = oldest && newest ? oldest.age - newest.age : 0;
  return seconds > 0 ? (total - 1) / seconds : null;
}

function Words({ metadata }) {
  return html`<p class="words">
    Messages expire after ${age(metadata._default_message_ttl)} by default. If the project's log is full, its oldest messages are removed earlier.
    ${metadata._enable_encrypt_messages === true && " Bodies are encrypted in the store."}
  </p>`;
}

function Tabs({ route }) {
  const { project, topic, query } = route;
  const now = query.tab ?? "log";
  const tab = (key, label) =>
    html`<li key=${key}><a href=${toTopic(project, topic, { tab: key === "log" ? "" : key })} aria-current=${now === key ? "page" : undefined}>${label}</a></li>`;
  return html`<nav class="tabs" aria-label="Topic sections">
    <ul>
      ${tab("log", "Log")} ${tab("tail", "Tail")} ${tab("publish", "Publish")} ${tab("metadata", "Metadata")}
      <li><a href=${at(project, "subscriptions", { topic })}>Subscriptions</a></li>
    </ul>
  </nav>`;
}

function Shown({ route, metadata, stats }) {
  const { project, topic, query } = route;
  const { tab } = query;
  if (tab === "publish") return html`<${Post} route=${route} metadata=${metadata.value} done=${stats.again} />`;
  if (tab === "metadata") return html`<${Metadata} route=${route} done=${metadata.again} />`;
  if (tab === "tail") return html`<${Following} match=${topic} topic=${topic} query=${query} href=${(other) => toTopic(project, topic, other)} />`;
  if (tab) return html`<${Empty} title="Page not found"></${Empty}>`;
  return stats.value && html`<${Log} route=${route} stats=${stats.value} />`;
}

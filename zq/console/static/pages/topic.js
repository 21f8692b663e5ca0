// SPDX-License-Identifier: Apache-2.0
// One topic: what the log has of it, its metadata in words, and below what can be looked at and done.

import { get, topicPath } from "../api.js";
import { useClock, useLive } from "../live.js";
import { Act } from "../parts/act.js";
import { html } from "../parts/html.js";
import { Empty, Stale, waiting } from "../parts/states.js";
import { age, clock, count, rate, visible } from "../text.js";
import { at, go, toTopic } from "../route.js";
import { Log, sequenceOf } from "./log.js";
import { Metadata } from "./metadata.js";
import { Post } from "./post.js";
import { askToDelete, askToPurge } from "./queueacts.js";
import { Following } from "./tail.js";

const FIGURES_EVERY = 3;
const RATES_EVERY = 10;
const METADATA_EVERY = 20;

/** The page. */
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
  const late = stats.fault !== null || now - stats.at > 10000;
  return html`<section aria-label="Figures" class=${late ? "tiles stale" : "tiles"}>
    <div class="tile"><span class="name">Messages in the log</span><span class="figure">${count(total)}</span></div>
    <${Edge} name="First sequence" edge=${oldest} /> <${Edge} name="Last sequence" edge=${newest} />
    <div class="tile"><span class="name">Published a second</span><span class="figure">${rate(lately)}</span><span class="quiet">${rate(meanOf(stats.value))} on the average of what the log has</span></div>
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
    Messages live ${age(metadata._default_message_ttl)} unless a publish says otherwise, as long as the project's log has room. Nobody takes them away.
    ${metadata._enable_encrypt_messages === true && " Bodies are encrypted in the store."}
  </p>`;
}

function Tabs({ route }) {
  const { project, topic, query } = route;
  const now = query.tab ?? "log";
  const tab = (key, label) =>
    html`<li key=${key}><a href=${toTopic(project, topic, { tab: key === "log" ? "" : key })} aria-current=${now === key ? "page" : undefined}>${label}</a></li>`;
  return html`<nav class="tabs" aria-label="Parts of the topic">
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
  if (tab) return html`<${Empty} title="There is no such part"></${Empty}>`;
  return stats.value && html`<${Log} route=${route} stats=${stats.value} />`;
}

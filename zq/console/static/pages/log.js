// SPDX-License-Identifier: Apache-2.0
// What a project's log has of one topic: pages by sequence, which go forward from wherever they begin; and one message.

import { useEffect, useRef, useState } from "preact/hooks";
import { asking, call, topicPath } from "../api.js";
import { parse, write } from "../json.js";
import { useClock, useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { Body } from "../parts/body.js";
import { html } from "../parts/html.js";
import { Empty, Fault, Loading, Stale, waiting } from "../parts/states.js";
import { go, toTopic } from "../route.js";
import { age, bytes, moment, visible } from "../text.js";
import { draft } from "./post.js";

const PAGE = 20n;
const EVERY = 5;
// Characters of a body that a row shows.
const START = 120;

/** The tab. `stats`: of the topic, with details. */
export function Log({ route, stats }) {
  const { m, after } = route.query;
  const known = useRef(null);
  known.current = stats;
  const [span] = useState(() => ({ width: widthOf(stats) }));
  const load = () => (after ? page(route.topic, after) : lastPage(route.topic, known.current, span));
  const found = useLive(load, EVERY, [after]);
  const list = useHeld(found.value, after ?? "", Boolean(m));
  const href = (query) => toTopic(route.project, route.topic, { after, ...query });
  const table = () => html`<${Table} route=${route} list=${list} stats=${stats} span=${span} href=${href} />`;
  return html`${found.value && html`<${Stale} found=${found} />`}
    <div class=${m ? "split open" : "split"}>
      <div class="list">${waiting(found) ?? table()}</div>
      ${m && html`<${Published} key=${m} topic=${route.topic} id=${m} back=${href({})} />`}
    </div>`;
}

/** What is shown of the page that begins at `place`: it stays while the pointer is over it, or a row is `open`. */
function useHeld(found, place, open) {
  const [held, hold] = useState({ place: null });
  const over = useRef(false);
  const same = held.place === place;
  useEffect(() => {
    if (!found) over.current = false; // what the pointer was over is gone
    else if (!(same && (over.current || open))) hold({ place, page: found });
  }, [found]);
  const shown = same ? held.page : found;
  const known = new Set(shown?.rows.map((row) => row.id));
  const news = found?.rows.filter((row) => !known.has(row.id)).length;
  return { shown, news, update: () => hold({ place, page: found }), over: (is) => () => (over.current = is) };
}

/** How many of the log's sequences a page of the topic takes, on the average. */
function widthOf({ oldest, newest, total }) {
  if (!newest) return PAGE;
  const width = (sequenceOf(newest) - sequenceOf(oldest) + 1n) * PAGE / BigInt(total);
  return width > PAGE ? width : PAGE;
}

/** Behind the sequence `after`: messages with the texts of their bodies; `full`: there may be more. */
async function page(topic, after) {
  const { text } = await call("GET", topicPath(topic, "/messages"), { query: { marker: after, limit: String(PAGE), detailed: true } });
  const { messages, gap, links } = parse(text);
  const plain = JSON.parse(text).messages;
  const rows = plain.map((message, at) => ({ ...message, text: write(messages[at].body) }));
  return { rows, after, gap: Boolean(gap), full: BigInt(rows.length) >= PAGE && links.length > 0 };
}

/** The page that ends with the last message, or about so many of the last as there is room for. */
async function lastPage(topic, { oldest, newest }, span) {
  if (!newest) return page(topic, "");
  const [first, last] = [sequenceOf(oldest), sequenceOf(newest)];
  for (;;) {
    const after = last - span.width < first ? first - 1n : last - span.width;
    const seen = await page(topic, String(after));
    if (!seen.full || span.width <= PAGE || BigInt(seen.rows.at(-1).id) >= last) {
      if (after >= first && BigInt(seen.rows.length) < PAGE / 2n) span.width *= 4n;
      return { ...seen, newest: true };
    }
    span.width = span.width > PAGE * 4n ? span.width / 4n : PAGE;
  }
}

/** A place from which a page begins with messages before these; "0" if that is the start. */
async function before(topic, rows, { oldest }, span) {
  for (let { width } = span; ; width *= 4n) {
    const after = BigInt(rows[0].id) - 1n - width;
    if (!oldest || after < sequenceOf(oldest)) return "0";
    const seen = await page(topic, String(after));
    if (seen.rows[0]?.id !== rows[0].id) return String(after);
  }
}

/**
 * @param {{href: string}} edge of a topic's stats
 * @returns {bigint} its sequence
 */
export function sequenceOf({ href }) {
  return BigInt(href.slice(href.lastIndexOf("/") + 1));
}

function Table({ route, list, stats, span, href }) {
  const now = useClock();
  const { rows, gap } = list.shown;
  if (!rows.length) return html`<${Nothing} route=${route} after=${route.query.after} />`;
  return html`${gap && html`<p class="quiet">Earlier messages were removed from the log because it was full.</p>`}
    ${list.news > 0 && html`<p><button type="button" onClick=${list.update}>${list.news} new: show</button></p>`}
    <div class="scroll" role="region" aria-label="Messages" tabindex="0" onPointerEnter=${list.over(true)} onPointerLeave=${list.over(false)}>
      <table class="cards plain">
        <thead>
          <tr><th scope="col">Sequence</th><th scope="col" class="number">Age</th><th scope="col" class="number">Expires in</th>
          <th scope="col">Body</th><th scope="col" class="number">Size</th></tr>
        </thead>
        <tbody>${rows.map((row) => html`<${Row} key=${row.id} row=${row} now=${now} open=${route.query.m} href=${href({ m: row.id })} />`)}</tbody>
      </table>
    </div>
    <${Pages} route=${route} found=${list.shown} stats=${stats} span=${span} />`;
}

function Row({ row, now, open, href }) {
  return html`<tr data-row class=${row.id === open ? "opened" : undefined}>
    <th scope="row"><a class="id" href=${href}>${row.id}</a></th>
    <td class="number" data-name="Age" title=${moment(row.created)}>${age(Math.max(0, (now - Date.parse(row.created)) / 1000))}</td>
    <td class="number" data-name="Expires in" title=${moment(row.expires)}>${age(Math.max(0, (Date.parse(row.expires) - now) / 1000))}</td>
    <td class="start" data-name="Body"><code>${visible(row.text.slice(0, START))}</code></td>
    <td class="number" data-name="Size">${bytes(row.text.length)}</td>
  </tr>`;
}

function Pages({ route, found, stats, span }) {
  const { rows, newest, full } = found;
  const move = (after) => go(toTopic(route.project, route.topic, { after }));
  const back = () => before(route.topic, rows, stats, span).then(move, (fault) => announce(fault.message, true));
  const begins = !stats.oldest || BigInt(rows[0].id) <= sequenceOf(stats.oldest);
  return html`<p class="row quiet">
    <span>${newest ? "Latest messages." : `Sequences ${rows[0].id} to ${rows.at(-1).id}.`}</span>
    ${!begins && html`<button type="button" onClick=${() => move("0")}>Oldest</button><button type="button" onClick=${back}>Earlier</button>`}
    ${full && !newest && html`<button type="button" onClick=${() => move(rows.at(-1).id)}>Later</button>`}
    ${!newest && html`<button type="button" onClick=${() => move("")}>Latest</button>`}
  </p>`;
}

function Nothing({ route, after }) {
  if (after) {
    return html`<${Empty} title="No messages after this sequence"><p><a href=${toTopic(route.project, route.topic)}>Show the latest messages</a></p></${Empty}>`;
  }
  return html`<${Empty} title="The topic has no messages">
    <p>No messages were published, or they expired, were purged, or were removed because the log was full.</p>
    <p><a href=${toTopic(route.project, route.topic, { tab: "publish" })}>Publish a message</a></p>
  </${Empty}>`;
}

/** One message beside a list, or in its place where there is no room. `back`: the address without it. */
export function Published({ topic, id, back }) {
  const [{ found, fault }, show] = useState({});
  const load = () => one(topic, id).then((message) => show({ found: message }), (refused) => show({ fault: refused }));
  useEffect(() => void load(), []);
  return html`<section class="message" aria-label="Message">
    <div class="title">
      <h2>Message</h2>
      <a class="button" data-close href=${back}>Close</a>
    </div>
    ${!found && !fault && html`<${Loading} />`}
    ${fault && (fault.status === 404 ? html`<${Gone} />` : html`<${Fault} fault=${fault} again=${load} />`)}
    ${found && html`<${Whole} topic=${topic} message=${found} />`}
  </section>`;
}

async function one(topic, id) {
  const { text } = await call("GET", topicPath(topic, `/messages/${encodeURIComponent(id)}`), { query: { detailed: true } });
  return { ...JSON.parse(text), body: parse(text).body, raw: text };
}

function Gone() {
  return html`<${Empty} title="Message not found"><p>The message expired, was purged, or was removed because the log was full.</p></${Empty}>`;
}

function Whole({ topic, message }) {
  const again = () => {
    Object.assign(draft, { path: topicPath(topic), text: write(message.body, 2) });
    go(toTopic(asking.project, topic, { tab: "publish" }));
  };
  return html`<${Facts} topic=${topic} message=${message} />
    <${Body} value=${message.body} raw=${message.raw} name=${`message-${message.id}.json`} />
    <div class="row"><${Act} rule="topics:publish" onClick=${again}>Publish a copy…</${Act}></div>`;
}

function Facts({ topic, message }) {
  const now = useClock();
  const since = (now - Date.parse(message.created)) / 1000;
  const rows = [
    ["Topic", html`<a href=${toTopic(asking.project, topic)}>${visible(topic)}</a>`],
    ["Sequence", message.id],
    ["Published", `${age(Math.max(0, since))} ago, ${moment(message.created)}`],
    ["Expires", `in ${age(Math.max(0, (Date.parse(message.expires) - now) / 1000))}, ${moment(message.expires)}`],
    ["Time to live", age(message.ttl)],
    ["Checksum", message.checksum && visible(message.checksum)],
  ].filter(([, value]) => value !== undefined);
  return html`<dl class="facts">${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

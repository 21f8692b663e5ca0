// SPDX-License-Identifier: Apache-2.0
// One message: its body and all that zq keeps of it.

import { useEffect, useState } from "preact/hooks";
import { call, get, queuePath } from "../api.js";
import { write } from "../json.js";
import { useClock, useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { Body, bodyOf, copy } from "../parts/body.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { Empty, Fault, Loading } from "../parts/states.js";
import { go, to } from "../route.js";
import { client, may } from "../session.js";
import { age, bytes, moment, several, visible } from "../text.js";
import { Holder } from "./claims.js";
import { RedriveThese } from "./letters.js";
import { State, stateOf } from "./messages.js";
import { draft } from "./post.js";

const EVERY = 15;
// Bytes of a body that is shown whole without being asked for.
const SMALL = 65536;
const UNDATED = "time not recorded";
const PASSED = { claimed: "available again if the claim is not renewed", delayed: "available", ready: "available", finished: "available" };

/** Beside the listing, or in its place where there is no room. `changed`: called when it was deleted. */
export function Message({ route, queue, id, changed }) {
  const path = queuePath(queue, `/messages/${encodeURIComponent(id)}`);
  const found = useLive(() => get(path, { detailed: true, bodies: "start" }), EVERY, [queue, id]);
  const back = to(route.project, route.queue, { ...route.query, m: undefined });
  const gone = found.fault?.status === 404;
  return html`<section class="message" aria-label="Message">
    <div class="title">
      <h2>Message</h2>
      <a class="button" data-close href=${back}>Close</a>
    </div>
    <p class="id whole">${visible(id)}</p>
    ${gone && html`<${Elsewhere} route=${route} queue=${queue} id=${id} />`}
    ${found.fault && !gone && !found.fault.passing && html`<${Fault} fault=${found.fault} again=${found.again} />`}
    ${!found.value && !found.fault && html`<${Loading} />`}
    ${found.value && !gone && html`<${Living} route=${route} queue=${queue} message=${found.value} path=${path} back=${back} changed=${changed} />`}
  </section>`;
}

/** It is not in the queue: where it is now, or what is left of it. */
function Elsewhere({ route, queue, id }) {
  const path = `messages/${encodeURIComponent(id)}`;
  const found = useLive(() => get(path, { detailed: true, bodies: "start" }), EVERY, [id]);
  if (found.fault?.status === 404) {
    return html`<${Empty} title="Message not found">
      <p>The message finished, expired or was purged, and no queue that you can read has a record of it.</p>
    </${Empty}>`;
  }
  if (!found.value) return found.fault ? html`<${Fault} fault=${found.fault} again=${found.again} />` : html`<${Loading} />`;
  const { queue: name, state, message } = found.value;
  const finished = state === "finished";
  const href = to(route.project, name, finished ? { state: "history" } : { m: id, state: state === "ready" ? "" : state });
  return html`<${Empty} title=${finished ? "The message is finished" : "The message is in another queue"}>
      <p>${finished ? `The message was ${visible(message.outcome).replace("_", "-")}: see ` : `The message is ${state} in `}<a href=${href}>${finished ? `the history of ${visible(name)}` : visible(name)}</a>.</p>
    </${Empty}>
    <${Facts} message=${message} queue=${name} state=${state} />
    ${(finished || name !== queue) && html`<${Whole} key=${id} message=${message} path=${path} member="message" />`}`;
}

/** Open the form for posts with the body of the message. */
async function postAgain(route, queue, path) {
  draft.text = write((await bodyOf(path)).body, 2);
  draft.path = queuePath(queue);
  go(to(route.project, queue, { tab: "post" }));
}

function Living({ route, queue, message, path, back, changed }) {
  const act = async () => {
    await call("DELETE", path);
    announce("The message was deleted.");
    moved();
  };
  const moved = () => {
    go(back);
    changed();
  };
  const repeat = () => postAgain(route, queue, path).catch((fault) => announce(fault.message, true));
  const body = html`<p>The message is permanently deleted. If a consumer has claimed it, the deletion is rejected.</p>`;
  return html`<${Facts} message=${message} queue=${queue} />
    <${Whole} key=${message.id} message=${message} path=${path} />
    <div class="row">
      ${Object.entries(commands(route.project, queue, message.id)).map(
        ([name, text]) => html`<button key=${name} type="button" onClick=${() => copy(text, "The command")}>Copy as ${name}</button>`,
      )}
      ${message.origin && html`<${RedriveThese} queue=${queue} ids=${[message.id]} done=${moved} />`}
      <${Act} rule="messages:create" onClick=${repeat}>Post a copy…</${Act}>
      <${Act} rule="messages:delete" kind="danger" onClick=${() => ask({ title: "Delete the message", verb: "Delete", body, act })}>Delete…</${Act}>
    </div>`;
}

/**
 * The whole body, by itself if it is small, else when it is asked for. `member`: of the answer, in which the message is.
 * @returns {unknown}
 */
export function Whole({ message, path, member }) {
  const small = message.body_bytes <= SMALL;
  const [{ found, fault }, show] = useState({});
  const load = () => bodyOf(path, member).then((read) => show({ found: read }), (refused) => show({ fault: refused }));
  useEffect(() => void (small && load()), []);
  if (found) return html`<${Body} value=${found.body} raw=${found.raw} name=${`message-${message.id}.json`} />`;
  return html`<section class="body" aria-label="Body">
    <div class="row"><h3>Body</h3><span class="quiet">${bytes(message.body_bytes)}</span>
      ${!small && html`<button type="button" onClick=${load}>Show the whole body</button>`}</div>
    ${fault && html`<${Fault} fault=${fault} again=${load} />`}
    <pre tabindex="0" aria-label="Start of the body">${visible(message.body_start)}${message.body_start.length < message.body_bytes && "…"}</pre>
  </section>`;
}

function quoted(text) {
  return `'${text.replaceAll("'", "'\\''")}'`;
}

function commands(project, queue, id) {
  const base = new URL("../", document.baseURI).href.replace(/\/$/, "");
  const url = `${base}/v2/${queuePath(queue, `/messages/${encodeURIComponent(id)}`)}?detailed=true`;
  return {
    curl: `curl -H ${quoted(`Client-ID: ${client()}`)} -H ${quoted(`X-Project-ID: ${project}`)} ${quoted(url)}`,
    zq: `zq --url ${quoted(base)} --project ${quoted(project)} get ${quoted(queue)} ${quoted(id)}`,
    Python: [
      "from zq.client import Client",
      "",
      `with Client(${JSON.stringify(base)}, ${JSON.stringify(project)}) as client:`,
      `    print(client.queue(${JSON.stringify(queue)}).get(${JSON.stringify(id)}))`,
    ].join("\n"),
  };
}

function Facts({ message, queue, state: known }) {
  const now = useClock();
  const state = known ?? stateOf(message, now);
  const due = (Date.parse(message.available_at) - now) / 1000;
  const ahead = (when) => `in ${age(Math.max(0, (Date.parse(when) - now) / 1000))}, ${moment(when)}`;
  const rows = [
    ["State", html`<${State} name=${state} />`],
    ["Finished", message.finished && moment(message.finished)],
    ["Available", due > 0 ? ahead(message.available_at) : moment(message.available_at)],
    ["Posted", `${age((now - Date.parse(message.created)) / 1000)} ago, ${moment(message.created)}`],
    ["Expires", !message.finished && ahead(message.expires)],
    ["Time to live", age(message.ttl)],
    ["Claims", several(message.claim_count, "claim")],
    ["Sequence", visible(message.sequence)],
    ["Checksum", message.checksum && visible(message.checksum)],
    ["Original queue", message.origin && visible(message.origin)],
    ["Claims in the original queue", message.origin_claim_count],
    ["Reason", message.reason && visible(message.reason)],
    ...Object.entries(message.attributes ?? {}).map(([name, value]) => [`Attribute ${visible(name)}`, attribute(value)]),
  ].filter(([, value]) => value !== undefined && value !== "" && value !== false);
  return html`<dl class="facts">${rows.map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
    <${Timeline} message=${message} queue=${queue} state=${state} now=${now} />`;
}

/** The text of an attribute; with its type, unless it is a text or a number. */
function attribute(value) {
  return typeof value === "object" ? `${visible(value.value)} (${visible(value.type)})` : visible(value);
}

/**
 * The time in milliseconds at which a dead letter was moved, or undefined. A move starts the ttl again; later claims may
 * postpone the expiry.
 */
function movedAt(message) {
  if (message.finished || message.claim_count > 0) return undefined;
  return Date.parse(message.expires) - message.ttl * 1000;
}

/** The steps of its life that are known, in order. */
function Timeline({ message, queue, state, now }) {
  const claim = useClaim(queue, message);
  const { origin, origin_claim_count: times, reason } = message;
  const steps = [
    [message.created, origin ? `posted to ${visible(origin)}` : "posted"],
    origin && [movedAt(message) ?? message.created, `moved here from ${visible(origin)} after ${several(times, "claim")}${reason ? `: ${visible(reason)}` : ""}`, undefined, movedAt(message) ? undefined : UNDATED],
    claim && [claim.since, "claimed", html`claimed by <${Holder} of=${claim.holder} />`],
    claim && [claim.until, "the claim expires"],
    [message.available_at, PASSED[state]],
    message.finished ? [message.finished, visible(message.outcome).replace("_", "-")] : [message.expires, "expires"],
  ].filter(Boolean);
  const sorted = steps.map(([when, ...what]) => [new Date(when).getTime(), ...what]).toSorted(([one], [other]) => one - other);
  const earlier = message.claim_count - (state === "claimed" ? 1 : 0);
  return html`<h3>Timeline</h3>
    <ol class="timeline">
      ${sorted.map(([when, what, shown, undated]) => html`<li key=${what} class=${when > now ? "ahead" : undefined}><span class="when">${undated ?? moment(when)}</span> ${shown ?? what}</li>`)}
    </ol>
    <p class="quiet">${earlier > 0 && `Claimed ${several(earlier, "time")} before. `}The times of earlier claims are not recorded.</p>`;
}

/** Who holds it, since when and until when, to the second, if the caller may see claims. */
function useClaim(queue, message) {
  const id = new URL(message.href, location.href).searchParams.get("claim_id");
  const [claim, setClaim] = useState(null);
  useEffect(() => {
    setClaim(null);
    if (!id || !may("claims:get")) return;
    const path = queuePath(queue, `/claims/${encodeURIComponent(id)}`);
    get(path, { bodies: "start", detailed: true }).then(
      ({ age: seconds, ttl, ...holder }) => setClaim({ since: Date.now() - seconds * 1000, until: Date.now() + (ttl - seconds) * 1000, holder }),
      () => {}, // it has ended meanwhile
    );
  }, [id, message.available_at]);
  return claim;
}

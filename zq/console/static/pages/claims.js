// SPDX-License-Identifier: Apache-2.0
// Who holds what: all live claims of the project, whose they are and for how long still.

import { useEffect, useRef, useState } from "preact/hooks";
import { call, get, queuePath } from "../api.js";
import { useClock, useLive } from "../live.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { lacking, Rows } from "../parts/paged.js";
import { Empty, Stale } from "../parts/states.js";
import { at, to } from "../route.js";
import { client, may } from "../session.js";
import { age, count, moment, several, visible } from "../text.js";

const PAGE = 100;
const EVERY = 5;
// Seconds between two looks at the holders of a queue, beside all else that its page asks for.
const HOLDERS_EVERY = 20;
// Requests of one look: a page of the server may be short, or empty, though there are more.
const MOST_ASKED = 4;
// Rows that the document has at most.
const MOST = 1000;
// Digits of a client's id that a row shows.
const DIGITS = 8;
const ORDERS = {
  since: ["Longest held", (one) => Date.parse(one.created)],
  ends: ["Expiring first", (one) => Date.parse(one.ends)],
};

/** The page. */
export function Claims({ route }) {
  const [wanted, setWanted] = useState(PAGE);
  const found = useLive(() => read("claims", wanted), EVERY * Math.ceil(wanted / PAGE), [wanted]);
  return html`<div class="title"><h1>Claims</h1></div>
    <p class="quiet">A claim hides its messages from other consumers until it is settled, released or expired.</p>
    <${Stale} found=${found} />
    ${lacking(found) ?? html`<${Table} route=${route} found=${found} more=${() => setWanted(wanted + PAGE)} />`}`;
}

/**
 * @param {string} path of a listing of claims
 * @param {number} wanted
 * @returns {Promise<{claims: any[], more: boolean}>} each with when it was `seen`; `more`: whether there may be others
 */
async function read(path, wanted) {
  const claims = [];
  let marker = "";
  for (let asked = 0; asked < MOST_ASKED * Math.ceil(wanted / PAGE); asked += 1) {
    const answer = await get(path, { limit: PAGE, marker });
    const seen = Date.now();
    claims.push(...answer.claims.map((one) => ({ ...one, seen })));
    if (!answer.links.length) return { claims, more: false };
    if (claims.length >= wanted) break;
    marker = new URL(answer.links[0].href, location.href).searchParams.get("marker");
  }
  return { claims, more: true };
}

function Table({ route, found, more }) {
  const now = useClock();
  const [shown, news, update, over] = useShown(found);
  const sort = route.query.sort in ORDERS ? route.query.sort : "since";
  const [, when] = ORDERS[sort];
  const rows = shown.claims.toSorted((one, other) => when(one) - when(other));
  if (!rows.length && !shown.more) {
    return html`<${Empty} title="No claims"><p>No messages in this project are currently claimed.</p></${Empty}>`;
  }
  const again = () => {
    over.current = false; // what the reader did himself is shown at once
    found.again();
  };
  const room = shown.more && rows.length < MOST;
  return html`<${Orders} project=${route.project} chosen=${sort} />
    <div class="row tools">${news > 0 && html`<button type="button" onClick=${update}>${several(news, "change")}: show</button>`}</div>
    <div onPointerEnter=${() => (over.current = true)} onPointerLeave=${() => (over.current = false)}>
      <${Rows} name="Claims" columns=${["Queue", "Claim", "Holder", "#Messages", "#Age", "#Expires in", "Actions"]}>
        ${rows.map((one) => html`<${Row} key=${one.href} route=${route} item=${one} now=${now} again=${again} />`)}
      </${Rows}>
    </div>
    <p class="quiet">${several(rows.length, "claim")}${shown.more ? " loaded. Only these are sorted." : " in total."}
      ${room && html` <button type="button" onClick=${more}>Load more</button>`}</p>`;
}

function Orders({ project, chosen }) {
  const link = ([key, [name]]) => {
    const href = at(project, "claims", { sort: key === "since" ? "" : key });
    return html`<li key=${key}><a href=${href} aria-current=${key === chosen ? "page" : undefined}>${name}</a></li>`;
  };
  return html`<nav class="tabs" aria-label="Order"><ul>${Object.entries(ORDERS).map(link)}</ul></nav>`;
}

/** What is drawn: what was found last or, under the pointer, what stood there; then what is new waits. */
function useShown(found) {
  const over = useRef(false);
  const [shown, setShown] = useState(found.value);
  const fresh = found.value;
  const news = missing(shown, fresh) + missing(fresh, shown);
  useEffect(() => {
    if (!over.current || !news) setShown(fresh);
  }, [fresh]);
  return [shown, news, () => setShown(fresh), over];
}

function missing(one, other) {
  const known = new Set(other.claims.map((claim) => claim.href));
  return one.claims.filter((claim) => !known.has(claim.href)).length;
}

function Row({ route, item: one, now, again }) {
  const held = one.age + Math.max(0, now - one.seen) / 1000;
  const left = one.ttl - held;
  return html`<tr data-row>
    <th scope="row"><a href=${to(route.project, one.queue, { state: "claimed" })}>${visible(one.queue)}</a></th>
    <td data-name="Claim"><span class="id" title=${one.id}>${one.id.includes(".") ? visible(one.id) : visible(one.id.slice(-10))}</span></td>
    <td data-name="Holder"><${Holder} of=${one} /></td>
    <td class="number" data-name="Messages">${count(one.messages)}</td>
    <td class="number" data-name="Age" title=${moment(one.created)}>${age(held)}</td>
    <td class="number" data-name="Expires in" title=${moment(one.ends)}>${left > 0 ? age(left) : "expired"}</td>
    <td data-name="Actions"><div class="row"><${Acts} item=${one} live=${left > 0} again=${again} /></div></td>
  </tr>`;
}

function Acts({ item: one, live, again }) {
  const path = queuePath(one.queue, `/claims/${encodeURIComponent(one.id)}`);
  const renew = async () => {
    await call("PATCH", path, { body: JSON.stringify({ ttl: one.ttl }) });
    announce(`The claim was renewed for ${age(one.ttl)}.`);
    again();
  };
  const renewed = () => renew().catch((fault) => announce(fault.message, true));
  return html`<${Act} rule="claims:delete" kind="danger" when=${live} why="The claim has expired." onClick=${() => askToRelease(one, path, again)}>Release…</${Act}>
    ${isOwn(one) && html`<${Act} rule="claims:update" when=${live} why="The claim has expired." onClick=${renewed}>Renew</${Act}>`}`;
}

function askToRelease(one, path, again) {
  const body = html`<p>The claim's messages (${count(one.messages)}) return to ${visible(one.queue)}. Other consumers can claim them after the queue's redelivery delay.</p>
    <p>If the holder, <${Holder} of=${one} />, is still processing them, they are processed twice.</p>`;
  const act = async () => {
    await call("DELETE", path);
    announce("The claim was released.");
    again();
  };
  ask({ title: "Release a claim", verb: "Release", typed: one.queue, body, act });
}

/** Who holds a claim, as he says himself. `of`: what has a `client` and an `agent`. */
export function Holder({ of: { client: id, agent } }) {
  if (id === null || id === undefined) return html`<span class="quiet">unknown</span>`;
  return html`<span class="holder" title=${`Client-ID ${visible(id)}`}>${agent ? visible(agent) : html`<span class="quiet">no User-Agent</span>`}
    <span class="id quiet"> ${visible(id.slice(0, DIGITS))}</span>${isOwn({ client: id }) && html` <span class="mark">this tab</span>`}</span>`;
}

function isOwn(one) {
  return one.client === client();
}

/**
 * Who holds the claims of a queue, by their ids, as far as the first page has them.
 * @param {string} queue
 * @param {boolean} wanted
 * @returns {Record<string, {client: string | null, agent: string | null}>}
 */
export function useHolders(queue, wanted) {
  const asks = wanted && may("claims:get_all");
  const load = async () => (asks ? (await get(queuePath(queue, "/claims"), { limit: PAGE })).claims : []);
  const found = useLive(load, HOLDERS_EVERY, [queue, asks]);
  return Object.fromEntries((found.value ?? []).map((one) => [one.id, one]));
}

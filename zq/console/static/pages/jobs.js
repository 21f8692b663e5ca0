// SPDX-License-Identifier: Apache-2.0
// What batch jobs have under way: the last batch of each producer, fences, and stages, which can be dropped.

import { call } from "../api.js";
import { parse, write } from "../json.js";
import { Act, announce } from "../parts/act.js";
import { ask } from "../parts/confirm.js";
import { html } from "../parts/html.js";
import { lacking, More, Rows, usePaged } from "../parts/paged.js";
import { Empty, Stale } from "../parts/states.js";
import { age, bytes, count, moment, several, visible } from "../text.js";

const EVERY = 5;
const PAGE = 100;
// Messages from which on a stage is dropped by typing its name.
const MANY = 20;

/** The page. */
export function Jobs() {
  return html`<div class="title"><h1>Jobs</h1></div>
    <p class="quiet">The state of batch jobs. A commit publishes the staged messages of a job and deletes its claimed messages, atomically.</p>
    <h2>Producers</h2>
    <${List} member="commits" name="Producers" columns=${["Producer", "#Last batch", "#Published", "#Deleted", "State", "#Decided"]} Row=${Producer}
      title="No job has committed" hint="A producer is here from its first POST /v2/commits on, for producer_ttl after its last one." />
    <h2>Fences</h2>
    <${List} member="fences" name="Fences" columns=${["Fence", "#Epoch", "#Given out"]} Row=${Fence}
      title="There are no fences" hint="POST /v2/fences/{name} returns the next epoch; requests with an older epoch are refused." />
    <h2>Stages</h2>
    <${List} member="stages" name="Stages" columns=${["Stage", "#Messages", "#Bytes", "#Dropped in", "Acts"]} Row=${Stage}
      title="Nothing is staged" hint="A post with ?stage={name} stages messages: they are invisible until a commit publishes them." />`;
}

function List({ member, name, columns, Row, title, hint }) {
  const found = usePaged(member, member, EVERY, { limit: PAGE }, { ends: true, load });
  const absent = lacking(found);
  if (absent) return absent;
  const rows = found.value.map((one) => html`<${Row} key=${one.name ?? one.producer} item=${one} done=${found.again} />`);
  return html`<${Stale} found=${found} />
    ${rows.length > 0 && html`<${Rows} name=${name} columns=${columns}>${rows}</${Rows}>`}
    ${rows.length === 0 && !found.more && html`<${Empty} title=${title}><p>${hint}</p></${Empty}>`}
    <${More} found=${found} />`;
}

/** Numbers of batches are the jobs' own, and may have 19 digits: they stay as they are written. */
async function load(path, query) {
  const { text } = await call("GET", path, { query });
  const exact = parse(text);
  const answer = JSON.parse(text);
  for (const [at, one] of (exact.commits ?? []).entries()) answer.commits[at].batch = write(one.batch);
  return answer;
}

function Producer({ item: one }) {
  return html`<tr data-row>
    <th scope="row">${visible(one.producer)}</th>
    <td class="number" data-name="Last batch">${one.batch}</td>
    <td class="number" data-name="Published">${count(one.published)}</td>
    <td class="number" data-name="Deleted">${count(one.deleted)}</td>
    <td data-name="State">${one.open ? "being carried out" : "done"}</td>
    <${Since} name="Decided" at=${one.decided} seconds=${one.age} />
  </tr>`;
}

function Fence({ item: one }) {
  return html`<tr data-row>
    <th scope="row">${visible(one.name)}</th>
    <td class="number" data-name="Epoch">${count(one.epoch)}</td>
    <${Since} name="Given out" at=${one.advanced} seconds=${one.age} />
  </tr>`;
}

/** How long ago; a dash where an earlier version of zq did not note it. */
function Since({ name, at, seconds }) {
  return html`<td class="number" data-name=${name} title=${at === null ? "An earlier version of zq did not note it." : moment(at)}>${at === null ? "–" : `${age(seconds)} ago`}</td>`;
}

function Stage({ item: one, done }) {
  return html`<tr data-row>
    <th scope="row">${visible(one.name)}</th>
    <td class="number" data-name="Messages">${count(one.messages)}</td>
    <td class="number" data-name="Bytes">${bytes(one.bytes)}</td>
    <td class="number" data-name="Dropped in" title=${moment(one.expires)}>${age(one.dropped_in)}</td>
    <td><${Act} rule="messages:delete_all" kind="danger" aria-label=${`Drop ${visible(one.name)}…`} onClick=${() => askToDrop(one, done)}>Drop…</${Act}></td>
  </tr>`;
}

function askToDrop(one, done) {
  const body = html`<p>The ${several(one.messages, "message")} that ${one.messages === 1 ? "is" : "are"} staged as ${visible(one.name)} ${one.messages === 1 ? "goes" : "go"} for good; no consumer has seen them.</p>
    <p>A commit that names the stage is refused until the job has staged anew. Published messages, queues and other stages stay.</p>`;
  const act = async () => {
    await call("DELETE", `stages/${encodeURIComponent(one.name)}`);
    announce("The stage was dropped.");
    done();
  };
  const typed = one.messages > MANY ? one.name : undefined;
  ask({ title: `Drop the stage ${visible(one.name)}`, verb: "Drop", typed, body, act });
}

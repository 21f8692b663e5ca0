// SPDX-License-Identifier: Apache-2.0
// The queues of a project with their figures, as the server has counted them: sorted, searched and paged there.

import { useState } from "preact/hooks";
import { Act } from "../parts/act.js";
import { Spark } from "../parts/chart.js";
import { Counted, Head, Pages, Search, useFigured } from "../parts/figured.js";
import { html } from "../parts/html.js";
import { Stale, waiting } from "../parts/states.js";
import { age, count, counted, rate, visible } from "../text.js";
import { to } from "../route.js";
import { PausedMark } from "./pausing.js";
import { askToCreate, Nothing, Selected } from "./queueacts.js";

const HOW = { usual: "oldest", size: 100, every: 5 };
// Headers by what they sort by; those without are not sorted by.
const COLUMNS = [
  ["Name", "name"],
  ["Oldest", "oldest"],
  ["Ready", "ready"],
  ["Delayed", "delayed"],
  ["Claimed", "claimed"],
  ["Dead letters", ""],
  ["In/s", "in"],
  ["Out/s", "out"],
  ["Last 10 min", ""],
];

/** The page. */
export function Queues({ route }) {
  const list = useFigured(route, HOW);
  const [chosen, setChosen] = useState([]);
  const selected = chosen.filter((one) => list.rows.some((row) => row.name === one));
  const gone = (names) => {
    list.drop(names);
    setChosen([]);
  };
  return html`<div class="title"><h1>Queues</h1><${Counted} list=${list} noun="queue" /></div>
    <div class="row tools">
      <${Search} route=${route} noun="queue" />
      <${Act} rule="queues:create" kind="main" onClick=${() => askToCreate(route.project)}>Create a queue</${Act}>
      <${Selected} names=${selected} gone=${gone} kind="queue" />
    </div>
    <${Stale} found=${list.found} />
    ${waiting(list.found) ?? html`<${Table} route=${route} list=${list} chosen=${selected} choose=${setChosen} />`}`;
}

function Table({ route, list, chosen, choose }) {
  if (!list.rows.length) return html`<${Nothing} route=${route} kind="queue" command="post" sample="jobs" />`;
  const row = (queue) => html`<${Row} key=${queue.name} route=${route} queue=${queue} chosen=${chosen} choose=${choose} />`;
  return html`<div class="scroll" role="region" aria-label="Queues" tabindex="0">
      <table class="cards">
        <thead>
          <tr>
            <th scope="col"><span class="hidden">Select</span></th>
            ${COLUMNS.map(([name, sort]) => html`<${Head} key=${name} route=${route} name=${name} sort=${sort} usual=${HOW.usual} />`)}
          </tr>
        </thead>
        <tbody>${list.rows.map(row)}</tbody>
      </table>
    </div>
    <${Pages} list=${list} />`;
}

function figure(name, value) {
  return html`<td class="number" data-name=${name}>${value}</td>`;
}

function Row({ route, queue, chosen, choose }) {
  const checked = chosen.includes(queue.name);
  const toggle = () => choose(checked ? chosen.filter((name) => name !== queue.name) : [...chosen, queue.name]);
  const letters = queue.dead_letter_queue;
  return html`<tr data-row class=${checked ? "chosen" : undefined}>
    <td><label class="tick"><input type="checkbox" aria-label=${`Select ${queue.name}`} checked=${checked} onChange=${toggle} /></label></td>
    <th scope="row"><a href=${to(route.project, queue.name)}>${visible(queue.name)}</a><${PausedMark} paused=${queue.paused} /></th>
    ${figure("Oldest", age(queue.oldest_ready))} ${figure("Ready", counted(queue, "ready"))} ${figure("Delayed", counted(queue, "delayed"))}
    ${figure("Claimed", counted(queue, "claimed"))}
    ${figure("Dead letters", letters ? html`<a href=${to(route.project, letters)} title=${`in ${visible(letters)}`}>${count(queue.dead)}</a>` : html`<span class="quiet">–</span>`)}
    ${figure("In/s", rate(queue.in))} ${figure("Out/s", rate(queue.out))}
    ${figure("Last 10 min", html`<${Spark} values=${queue.recent} />`)}
  </tr>`;
}


#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Ends a claim's work on some of its messages, or on all.
-- KEYS: project, queue, fences, answers, history if there is one, targets.
-- ARGV: now, claim, queue's full name, fence or "", epoch, key or "", digest, until when it is kept, seconds of
-- history, whether to delete the rest (1), numbers of deletes, releases and targets; ids to delete; ids to release with
-- delays (-1: as claimed); targets and ways as moving.lua reads them.
-- Returns for each target when what came to it expires first, then deleted, released, moved, buried, lost as msgpack.

local q, now, claim, full = queue_at(4), number(), argument(), argument()
local fences, fence, epoch = KEYS[keys(1)], argument(), number()
local answers, key, digest, expires = keys(2), argument(), argument(), number()
local h, rest, deletes, releases, count = history(number()), number() == 1, number(), number(), number()
local refused = key ~= '' and known(answers, key, now) or fenced(fences, fence, epoch)
if refused then return refused end
local messages, by_id, lost = held(q, claim, now), {}, {}
if #messages == 0 then return { 'unclaimed' } end
for _, m in ipairs(messages) do by_id[id_of(m.record)] = m end

-- The held message of the id, which is then spoken for.
local function named(id)
  local m = by_id[id]
  by_id[id] = nil
  if m then m.named = true else lost[#lost + 1] = id end
  return m
end

local deleted, released, moved, buried = {}, {}, {}, 0
for _ = 1, deletes do deleted[#deleted + 1] = named(argument()) end
for _ = 1, releases do
  local m, delay = named(argument()), number()
  if m then
    m.delay = delay
    released[#released + 1] = m
  end
end
local targets = read_targets(count)
local ways, ids = read_ways(targets)
for _, id in ipairs(ids) do
  local way = ways[id]
  way.m = named(id)
  if way.m then
    moved[#moved + 1] = way
    buried = buried + (way.reason == '' and 0 or 1)
  end
end
for _, m in ipairs(messages) do
  if rest and not m.named then deleted[#deleted + 1] = m end
end
finish(q, h, deleted, now, DELETED)
give_back(q, full, released, now)
if #moved > 0 then move(q, h, full, moved, now) end
local settled = cmsgpack.pack({ #deleted, #released, #moved - buried, buried, lost })
if key ~= '' then remember(answers, key, digest, expires, settled) end
return earliest(targets) .. settled

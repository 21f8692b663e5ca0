#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- One slice of an open commit: the next messages of one of its lists are deleted or published.
-- KEYS: project, queue (not used), transactions, the list; then of a list of claims the queue, with its history if there
-- is one, of a stage the targets. ARGV: now, producer, what is kept of the commit, number of the list, number of lists,
-- most messages, bytes; for claims "1" and seconds of history, for a stage "0", number of targets and their full names.
-- Returns 1 while something is left, 0 when nothing is.

local CHUNK = 16  -- records and bodies read at first, and twice as many each time: bodies may be large
local now, producer, expected, phase, phases = number(), argument(), argument(), number(), number()
local most, capacity = number(), number()
local t, list = transactions(), KEYS[keys(1)]
if redis.call('HGET', t.open, producer) ~= expected then return 0 end
if tonumber(redis.call('HGET', t.phase, producer)) ~= phase then return 1 end

-- Takes the next members off the list, whose items are those of a claim each, one behind the other.
local function next_members()
  local members = {}
  while #members < most do
    local item = redis.call('LPOP', list)
    if not item then break end
    local size = math.min(#item, (most - #members) * DIGITS)
    for at = 1, size, DIGITS do members[#members + 1] = string.sub(item, at, at + DIGITS - 1) end
    if size < #item then redis.call('LPUSH', list, string.sub(item, size + 1)) end
  end
  return members
end

local function settle()
  local q = queue_at(keys(9))
  local h = history(number())
  local members, messages = next_members(), {}
  for i, record in ipairs(pick(q.records, members)) do
    -- What was purged or deleted meanwhile has no record.
    if record then messages[#messages + 1] = parse(members[i], record) end
  end
  table.sort(messages, function(one, other) return one.sequence < other.sequence end)
  finish(q, h, messages, now, DELETED)
  return 0
end

local function publish_some()
  local targets, taken, bytes, chunk = read_targets(number()), 0, 0, CHUNK
  while taken < 2 * most and bytes < capacity do
    local drafts = redis.call('LRANGE', list, taken, math.min(taken + chunk, 2 * most) - 1)
    if #drafts == 0 then break end
    publish(drafts, function(index) return targets[index] end, now)
    for at = 2, #drafts, 2 do bytes = bytes + #drafts[at] end
    taken, chunk = taken + #drafts, math.min(2 * chunk, SLICE)
  end
  return taken
end

local settles = argument() == '1'
local taken = settles and settle() or not settles and publish_some()
if taken > 0 then redis.call('LTRIM', list, taken, -1) end
if redis.call('EXISTS', list) == 1 then return 1 end
if phase + 1 < phases then
  redis.call('HSET', t.phase, producer, phase + 1)
  return 1
end
redis.call('HDEL', t.open, producer)
redis.call('HDEL', t.phase, producer)
return 0

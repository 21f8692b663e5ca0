#!lua flags=no-writes
-- SPDX-License-Identifier: Apache-2.0
-- Records above a position that finished within a time, in the order of finishing. KEYS: project, queue, history.
-- ARGV: now, position, limit, bytes of bodies, since, until.
-- Returns the position to go on from (8 bytes; 0: nothing is left or the page is full), records with bodies.

local now, marker, limit, most, since, before = number(), argument(), number(), number(), number(), number()
local h = history(1)
local total = redis.call('ZCARD', h.history)

local function finished_at(record)
  local _, finished = struct.unpack(PAST, record)
  return finished
end

-- How many records finished before `since`: moments rise along the order.
local function earlier()
  local low, high = 0, since > 0 and total or 0
  while low < high do
    local middle = math.floor((low + high) / 2)
    local place = redis.call('ZRANGE', h.history, middle, middle)[1]
    if finished_at(redis.call('HGET', h.finished, place)) < since then low = middle + 1 else high = middle end
  end
  return low
end

local rank = math.max(redis.call('ZCOUNT', h.history, '-inf', marker), earlier())
local shown, records, steps, position = {}, {}, 0, 0
while #shown < limit and steps < STEPS and rank < total do
  local places = redis.call('ZRANGE', h.history, rank, rank + math.max(limit - #shown, 100) - 1)
  for i, record in ipairs(pick(h.finished, places)) do
    if finished_at(record) >= before then total = 0; break end
    if is_kept(record, now) and #shown < limit then shown[#shown + 1], records[#records + 1] = places[i], record end
  end
  rank, steps, position = rank + #places, steps + #places, tonumber(places[#places])
end
local bodies = portion(h.remains, shown, most)
if #shown == limit or #bodies < #shown or rank >= total then position = 0 end
return answer(records, bodies, { struct.pack('>I8', position) })

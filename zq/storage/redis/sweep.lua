#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Removes expired messages of a queue, then records of its history, then answers to requests. KEYS: project, queue,
-- answers, history. ARGV: now, limit of all together.
-- Returns how many messages went, how much else, and the earliest expiry of what is left, 0 if nothing is.

local q, now, answers = queue_at(4), number(), keys(2)
local h = history(1)
left = number()

-- Records of the history at these places. An id whose latest record is another one keeps that.
local function forget(places)
  local ids, gone = {}, {}
  for i, record in ipairs(pick(h.finished, places)) do
    ids[i] = id_of(record, struct.size(PAST))
  end
  for i, place in ipairs(pick(h.latest, ids)) do
    if place == places[i] then gone[#gone + 1] = ids[i] end
  end
  put('ZREM', h.history, places)
  put('ZREM', h.past, places)
  put('ZREM', h.forget, places)
  put('HDEL', h.finished, places)
  put('HDEL', h.remains, places)
  put('HDEL', h.latest, gone)
end

local expired = load(q, due(q.expiry, now))
local past = due(h.forget, now)
remove(q, expired)
forget(past)
local told = forget_answers(KEYS[answers], KEYS[answers + 1], now)
return { #expired, #past + told, earliest(q.expiry, h.forget, KEYS[answers + 1]) }

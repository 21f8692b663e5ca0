-- SPDX-License-Identifier: Apache-2.0
-- The store's time, the expiry schedule and active expiry.

---- script clock: allow-oom

-- The store's time, kept so that a failover to a server whose clock is behind does not turn it back. KEYS: zq:clock.
-- ARGV: microseconds ahead of TIME at which what is kept stems from a clock that was wrong. Returns microseconds.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local seen = tonumber(redis.call('GET', KEYS[1]) or 0)
if seen > now and seen <= now + tonumber(ARGV[1]) then return seen end
redis.call('SET', KEYS[1], now)
return now

---- script schedule: allow-oom

-- Adds entries to a bucket of the expiry schedule and removes others. KEYS: the bucket.
-- ARGV: moment or 0, its entry, entry to remove or "", "" or the moment before which it must stand to be removed.
-- Returns "".

if ARGV[1] ~= '0' then redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2]) end
local score = ARGV[3] ~= '' and redis.call('ZSCORE', KEYS[1], ARGV[3])
if score and (ARGV[4] == '' or tonumber(score) < tonumber(ARGV[4])) then redis.call('ZREM', KEYS[1], ARGV[3]) end
return ''

---- script due: allow-oom

-- What a bucket of the expiry schedule has due, earliest first, and the bucket for this round alone. KEYS: bucket, its
-- lease.
-- ARGV: now, limit, the round, for how many ms. Returns members; none if nothing is due or another round is at it.

local due = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
if #due == 0 then return due end
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[3] then return {} end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
return due

---- script due_done: allow-oom

-- Gives a bucket back, if it still is this round's. KEYS: its lease. ARGV: the round. Returns "".

if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return ''

---- part sweeping

-- Part of scripts that remove what has expired.

local left  -- how much more may be removed

-- What is due in a sorted set by expiry.
local function due(key, now)
  local found = redis.call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', 0, left)
  left = left - #found
  return found
end

-- Removes answers to requests that are due, of a queue of the name, or of none; how many.
local function remove_answers(answers, windows, now, name)
  local lapsed, size = due(windows, now), 0
  for _, key in ipairs(name and lapsed or {}) do
    if has_counted(redis.call('ZSCORE', windows, key)) then
      size = size + redis.call('HSTRLEN', answers, key) + OVERHEAD
    end
  end
  if size > 0 then add_usage(0, add_to_part(ANSWERED .. name, -size)) end
  put('HDEL', answers, lapsed)
  put('ZREM', windows, lapsed)
  return #lapsed
end

-- The earliest expiry in any of these sorted sets; 0 if they are empty.
local function earliest(...)
  local first = math.huge
  for _, key in ipairs({ ... }) do
    first = math.min(first, tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or math.huge))
  end
  return first < math.huge and math.ceil(first) or 0
end

---- script sweep: allow-oom

-- Removes expired messages of a queue, then records of its history, then answers to requests. KEYS: project, queue,
-- answers, history. ARGV: now, limit of all together, the queue's full name.
-- Returns how many messages went, how much else, and the earliest expiry of what is left, 0 if nothing is.

local q, now, answers = queue_at(5), number(), keys(2)
local h = history(1)
left = number()
q.full = argument()
local name = name_of(q.full)

-- The bytes of records of the history at these places do not count any more.
local function uncount_history(places)
  local state = redis.call('HMGET', q.state, 'from', 'kept')
  local from, kept = tonumber(state[1] or math.huge), tonumber(state[2] or 0)
  local size = kept
  for _, place in ipairs(places) do
    if tonumber(place) > from then size = size - redis.call('HSTRLEN', h.remains, place) - OVERHEAD end
  end
  if size == kept then return end
  size = math.max(0, size)
  redis.call('HSET', q.state, 'kept', size)
  add_usage(0, size - kept)
end

-- The message's id in a record.
local function id_in(record)
  local front = struct.size(PAST) + 2
  return id_of({ value = string.sub(record, front + 1 + struct.unpack('>I2', record, front - 1)) })
end

-- Records of the history at these places. An id whose latest record is another one keeps that.
local function forget(places)
  uncount_history(places)
  local ids, gone = {}, {}
  for i, record in ipairs(pick(h.finished, places)) do ids[i] = id_in(record) end
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
remove(q, expired, now)
forget(past)
local forgotten = remove_answers(KEYS[answers], KEYS[answers + 1], now, name)
-- Where nothing is left, nothing counts: servers of earlier versions remove what others counted.
if redis.call('EXISTS', q.stream) == 0 then add_usage(drop_figures(q, 'stored'), drop_figures(q, 'bytes')) end
if redis.call('EXISTS', h.history) == 0 then add_usage(0, drop_figures(q, 'kept')) end
if redis.call('EXISTS', KEYS[answers]) == 0 then add_usage(0, add_to_part(ANSWERED .. name, -math.huge)) end
return { #expired, #past + forgotten, earliest(q.expiry, h.forget, KEYS[answers + 1]) }

---- script sweep_project: allow-oom

-- Removes what has expired of a project's stages, producers, answers, published batches and documents, what was
-- purged, and what was trimmed. KEYS: project, queue (not used), transactions, answers, log, documents, messages of
-- each stage that may have expired. ARGV: now, limit, these stages. Returns as `sweep` does.

local now, limit, t, answers, log = number(), number(), transactions(), keys(2), log_at(keys(LOG_KEYS))
local documents = keys(3)
left = limit - (#ARGV - 2)
for at = 3, #ARGV do
  local content = KEYS[keys(1)]
  if not staged(redis.call('HGET', t.stages, ARGV[at]), now) then
    drop(t, ARGV[at], content)
  end
end
if redis.call('EXISTS', t.stages, t.open) == 0 then
  add_usage(add_to_part('staged', -math.huge), add_to_part('staged_bytes', -math.huge))
end
local producers = due(t.producing, now)
put('HDEL', t.producers, producers)
put('ZREM', t.producing, producers)
local listed = {}
for i, producer in ipairs(producers) do listed[i] = 'p' .. producer end
put('ZREM', t.work, listed)
put('HDEL', t.moments, listed)
remove_answers(KEYS[answers], KEYS[answers + 1], now)
local expired = due(KEYS[documents + 2], now)
for at = documents, documents + 2 do put(at == documents and 'HDEL' or 'ZREM', KEYS[at], expired) end

discard(log, due(log.fading, now))

-- Trimmed batches that publishing has left. Where that is more than a slice, this call has done enough.
local counts = counts_of(log)
if left > 0 and counts.removed < counts.dropped then
  left = left - remove_trimmed(log, counts, left)
  if counts.removed < counts.dropped then left = 0 end
  redis.call('HSET', log.counts, 'removed', counts.removed)
end

-- What was purged of a topic. The floor goes with the last of it.
local function clear(topic, floor)
  local purged = {}
  for _, front in ipairs(fronts(log, topic, 0, left)) do
    if opened(front).last <= floor then purged[#purged + 1] = front end
  end
  discard(log, purged)
  left = left - #purged
  if left > 0 then
    left = left - 1
    redis.call('HDEL', log.purged, topic)
  end
end

local cursor = '0'
repeat
  local scanned = redis.call('HSCAN', log.purged, cursor)
  cursor = scanned[1]
  for at = 1, #scanned[2], 2 do clear(scanned[2][at], tonumber(scanned[2][at + 1])) end
until cursor == '0' or left == 0
return { 0, limit - left, earliest(t.staging, t.producing, KEYS[answers + 1], KEYS[documents + 2], log.fading) }

-- SPDX-License-Identifier: Apache-2.0
-- The store's clock, the expiry schedule and active expiry.

---- script clock: allow-oom

-- Returns the store's time in microseconds. It is stored, so that a failover to a server with a slower clock does not
-- turn it back. KEYS: zq:clock. ARGV: microseconds; a stored time that is further ahead of TIME stems from a wrong
-- clock.

local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local seen = tonumber(redis.call('GET', KEYS[1]) or 0)
if seen > now and seen <= now + tonumber(ARGV[1]) then return seen end
redis.call('SET', KEYS[1], now)
return now

---- script level: allow-oom

-- Replaces the record of the store's level. KEYS: zq:level. ARGV: the former record or "", the new record. Returns 1, or
-- 0 if the store has a third record.

local found = redis.call('GET', KEYS[1]) or ''
if found ~= ARGV[1] and found ~= ARGV[2] then return 0 end
redis.call('SET', KEYS[1], ARGV[2])
return 1

---- script schedule: allow-oom

-- Adds an entry to a bucket of the expiry schedule, and removes another one. KEYS: the bucket. ARGV: time or 0, its
-- entry, entry to remove or "", "" or the time before which the entry must be scheduled to be removed. Returns "".

if ARGV[1] ~= '0' then redis.call('ZADD', KEYS[1], ARGV[1], ARGV[2]) end
local score = ARGV[3] ~= '' and redis.call('ZSCORE', KEYS[1], ARGV[3])
if score and (ARGV[4] == '' or tonumber(score) < tonumber(ARGV[4])) then redis.call('ZREM', KEYS[1], ARGV[3]) end
return ''

---- script due: allow-oom

-- Returns the due members of a bucket, earliest first, and leases the bucket to this round. KEYS: bucket, its lease.
-- ARGV: now, limit, round, duration of the lease in ms. Returns no members if nothing is due or another round has the
-- lease.

local due = redis.call('ZRANGE', KEYS[1], '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])
if #due == 0 then return due end
local holder = redis.call('GET', KEYS[2])
if holder and holder ~= ARGV[3] then return {} end
redis.call('SET', KEYS[2], ARGV[3], 'PX', ARGV[4])
return due

---- script due_done: allow-oom

-- Releases the lease of a bucket, if this round has it. KEYS: the lease. ARGV: the round. Returns "".

if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return ''

---- part sweeping

-- Part of scripts that remove expired data.

local left  -- number of entries that may still be removed

-- Returns the due members of a sorted set by expiry.
local function due(key, now)
  local found = redis.call('ZRANGE', key, '-inf', now, 'BYSCORE', 'LIMIT', 0, left)
  left = left - #found
  return found
end

-- Removes due idempotency results of a queue (or of no queue), and returns their number.
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

-- Returns the earliest expiry in these sorted sets, or 0 if they are empty.
local function earliest(...)
  local first = math.huge
  for _, key in ipairs({ ... }) do
    first = math.min(first, tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2] or math.huge))
  end
  return first < math.huge and math.ceil(first) or 0
end

---- script sweep: allow-oom

-- Removes expired messages of a queue, then entries of its history, then idempotency results. KEYS: project, queue,
-- idempotency results, history. ARGV: now, limit for all together, full name of the queue. Returns the number of
-- removed messages, the number of other removed entries, and the earliest expiry of the remaining data, or 0.

local q, now, answers = queue_at(5), number(), keys(2)
local h = history(1)
left = number()
q.full = argument()
local name = name_of(q.full)

-- Subtracts the bytes of the history entries at these positions.
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

-- Returns the id of the message in a history entry.
local function id_in(record)
  local front = struct.size(PAST) + 2
  return id_of({ value = string.sub(record, front + 1 + struct.unpack('>I2', record, front - 1)) })
end

-- Removes the history entries at these positions. If an id has a later entry, that entry stays.
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
-- Resets the counters of an empty queue, because servers of earlier versions remove data without counting it.
if redis.call('EXISTS', q.stream) == 0 then add_usage(drop_figures(q, 'stored'), drop_figures(q, 'bytes')) end
if redis.call('EXISTS', h.history) == 0 then add_usage(0, drop_figures(q, 'kept')) end
if redis.call('EXISTS', KEYS[answers]) == 0 then add_usage(0, add_to_part(ANSWERED .. name, -math.huge)) end
return { #expired, #past + forgotten, earliest(q.expiry, h.forget, KEYS[answers + 1]) }

---- script sweep_project: allow-oom

-- Removes expired data of a project: stages, producers, idempotency results, published batches, documents, purged data
-- and trimmed batches. KEYS: project, queue (not used), transactions, idempotency results, log, documents, messages of
-- each stage that may have expired. ARGV: now, limit, these stages. Returns the same as `sweep`.

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

-- Removes trimmed batches that publishes have left. If there are more than a slice, this call has done enough.
local counts = counts_of(log)
if left > 0 and counts.removed < counts.dropped then
  left = left - remove_trimmed(log, counts, left)
  if counts.removed < counts.dropped then left = 0 end
  redis.call('HSET', log.counts, 'removed', counts.removed)
end

-- Removes purged batches of a topic. The last of them also removes the floor.
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

-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts that put messages into queues.

local NEW = string.rep('\0', 38)  -- what stands in a record between ttl and tail of a message that was never claimed

-- Creates a queue that is known to be missing; its first sequence comes after all of its predecessors.
local function create(q, name, metadata)
  redis.call('ZADD', KEYS[1], 0, name)
  redis.call('HSET', KEYS[2], name, metadata)
  local floor = tonumber(redis.call('GET', KEYS[3]) or 0)
  redis.call('HSET', q.state, 'sequence', floor, 'fresh', 0)
  return floor
end

-- New messages of a queue, which is created if it is missing: `place` each, then `store` them. `texts`: moments as the
-- commands take them.
local function batch_for(q, full, now)
  local state = redis.call('HMGET', q.state, 'sequence', 'fresh', 'start', 'entered')
  local sequence = tonumber(state[1] or create(q, name_of(full), '{}'))
  local start = tonumber(state[3])
  if not start then
    start = now * PER_MS - sequence
    redis.call('HSET', q.state, 'start', start)
  end
  return {
    q = q, full = full, now = now, sequence = counted(sequence, start, now), fresh = tonumber(state[2] or 0),
    entered = tonumber(state[4] or 0), size = 0, texts = {}, avail = {}, order = {}, expiry = {}, records = {}, bodies = {}, ids = {},
  }
end

-- Adds a message; `front` and `rest` are what stands in its record behind the ttl. Where `available` is 0, it becomes
-- available at the larger of now and the queue's last such moment (L5).
local function place(batch, id, available, expires, ttl, front, rest, body)
  if available == 0 then
    batch.fresh = risen(batch.fresh, batch.now)
    available = batch.fresh
  end
  local sequence, n, texts = batch.sequence + 1, batch.size, batch.texts
  local member = string.format('%014.0f', sequence)
  batch.sequence, batch.size = sequence, n + 2
  texts[available] = texts[available] or string.format('%.0f', available)
  texts[expires] = texts[expires] or string.format('%.0f', expires)
  local avail, order, expiry = batch.avail, batch.order, batch.expiry
  local records, bodies, ids = batch.records, batch.bodies, batch.ids
  avail[n + 1], avail[n + 2] = texts[available], member
  order[n + 1], order[n + 2] = member, member
  expiry[n + 1], expiry[n + 2] = texts[expires], member
  records[n + 1], records[n + 2] = member, struct.pack('>I8I8I8I8', sequence, available, expires, ttl) .. front .. rest
  bodies[n + 1], bodies[n + 2] = member, body
  ids[n + 1], ids[n + 2] = id, member
end

local function store(batch)
  local q = batch.q
  local entered = batch.entered + batch.size / 2
  redis.call('HSET', q.state, 'sequence', batch.sequence, 'fresh', batch.fresh, 'entered', entered)
  put('ZADD', q.avail, batch.avail)
  put('ZADD', q.order, batch.order)
  put('ZADD', q.expiry, batch.expiry)
  put('HSET', q.records, batch.records)
  put('HSET', q.bodies, batch.bodies)
  put('HSET', q.ids, batch.ids)
  ring(batch.full)
end

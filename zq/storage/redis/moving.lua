-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts that move messages to other queues of the project, or to new places in their own.
--
-- A way is a table: `m` = the message, `to` = the target, `ttl` (-1: its own), `delay` in seconds, `reason` ("" unless
-- it goes as a dead letter), and `body` with `checksum` if it gets new ones. A target is a table: `q` and `full`, its
-- name.

-- Puts a message where it goes (model.Move); returns when it expires.
local function send(way, origin, now, body)
  local m, reason = way.m, way.reason
  local ttl = way.ttl >= 0 and way.ttl or m.ttl
  local expires, available = now + ttl * 1000, way.delay > 0 and now + way.delay * 1000 or 0
  local created, _, id, client, length = struct.unpack(TAIL, m.tail)
  local first = TAIL_SIZE + 1 + id + client
  local checksum = way.body and way.checksum or string.sub(m.tail, first, first + length - 1)
  local count = m.count
  if reason == '' then created, count, origin = now, 0, '' end
  local rest = struct.pack(TAIL, created, count, id, client, #checksum, #origin, #reason)
    .. string.sub(m.tail, TAIL_SIZE + 1, first - 1) .. checksum .. origin .. reason
  place(way.to.batch, id_of(m.record), available, expires, ttl, NEW, rest, way.body or body)
  return expires
end

-- Moves messages out of the queue `q` of the full name; its history `h` gets a record of each. Each target's `earliest`
-- is when the first of all that came to it expires.
local function move(q, h, full, ways, now)
  local origin, members, messages, targets = name_of(full), {}, {}, {}
  for i, way in ipairs(ways) do
    members[i], messages[i] = way.m.member, way.m
    way.m.outcome = way.reason == '' and MOVED or DEAD_LETTERED
  end
  local bodies = pick(q.bodies, members)
  finish(q, h, messages, now)
  for i, way in ipairs(ways) do
    local to = way.to
    if not to.batch then
      to.batch = batch_for(to.q, to.full, now)
      targets[#targets + 1] = to
    end
    local expires = send(way, origin, now, bodies[i])
    to.earliest = math.min(to.earliest or expires, expires)
  end
  for _, to in ipairs(targets) do
    store(to.batch)
    to.batch = nil
  end
end

-- The next so many targets: their names from ARGV, their keys from KEYS.
local function read_targets(count)
  local targets = {}
  for i = 1, count do targets[i] = { full = argument(), q = queue_at(keys(9)) } end
  return targets
end

-- The rest of ARGV: ways by the ids of the messages, and these ids in order.
local function read_ways(targets)
  local ways, ids = {}, {}
  while argument_at < #ARGV do
    local id, to = argument(), targets[number()]
    ids[#ids + 1] = id
    ways[id] = { to = to, ttl = number(), delay = number(), reason = argument(), checksum = argument() }
    if number() == 1 then ways[id].body = argument() end
  end
  return ways, ids
end

-- When what came to each target expires first, 0 if nothing did: the front of a reply.
local function earliest(targets)
  local pieces = {}
  for i, to in ipairs(targets) do pieces[i] = struct.pack('>I8', to.earliest or 0) end
  return table.concat(pieces)
end

-- SPDX-License-Identifier: Apache-2.0
-- Fences, stages and commits.

---- part staging

-- Part of scripts on a project's stages and producers. transactions.py draws what they keep.

local STAGE = '>I8I8I4'
local STAGED_QUEUE = '>I8I4'
local PRODUCER = '>I8I8I8'
local DRAFT_SIZE_AT = 25  -- where the size of its body stands in a draft: see layout.py

-- The next nine keys, which the project has for transactions.
local function transactions()
  local at = keys(9)
  return {
    fences = KEYS[at], producers = KEYS[at + 1], producing = KEYS[at + 2], stages = KEYS[at + 3],
    staging = KEYS[at + 4], open = KEYS[at + 5], phase = KEYS[at + 6],
    work = KEYS[at + 7], moments = KEYS[at + 8],
  }
end

-- Has a fence or a producer listed, with when it came to this epoch or batch.
local function enlist(t, member, now, place)
  redis.call('ZADD', t.work, 0, member)
  redis.call('HSET', t.moments, member, now .. ' ' .. place)
end

-- A stage: when it expires, bytes of its bodies, its queues' names with the least ttl in each. nil if it is gone.
local function staged(packed, now)
  if not packed or struct.unpack(STAGE, packed) <= now then return nil end
  local stage, count, at = { queues = {} }, nil, nil
  stage.expires, stage.bytes, count, at = struct.unpack(STAGE, packed)
  for i = 1, count do
    local least, length, first = struct.unpack(STAGED_QUEUE, packed, at)
    at = first + length
    stage.queues[i] = { least = least, name = string.sub(packed, first, at - 1) }
  end
  return stage
end

-- Counts messages that were staged, or are not any more, with so many bytes of bodies.
local function count_staged(messages, bytes)
  local change = add_to_part('staged', messages)
  -- Of stages that a server of an earlier version filled, less may have been counted than is taken away.
  local none = redis.call('HEXISTS', KEYS[4], 'staged') == 0
  add_usage(change, add_to_part('staged_bytes', none and -math.huge or bytes + messages * OVERHEAD))
end

local function take_down(t, name)
  redis.call('HDEL', t.stages, name)
  redis.call('ZREM', t.staging, name)
  redis.call('ZREM', t.work, 's' .. name)
end

local function drop(t, name, content)
  local packed = redis.call('HGET', t.stages, name)
  if packed then
    local _, bytes = struct.unpack(STAGE, packed)
    count_staged(-redis.call('LLEN', content), -bytes)
  end
  take_down(t, name)
  redis.call('UNLINK', content)
end

---- script fence: allow-oom

-- Gives out the next epoch of a fence. KEYS: project, queue (not used), transactions. ARGV: now, its name. Returns the
-- epoch.

local now, name, t = argument(), argument(), transactions()
local epoch = redis.call('HINCRBY', t.fences, name, 1)
enlist(t, 'f' .. name, now, epoch)
return epoch

---- script work_list: allow-oom

-- Living fences, producers or stages in the order of names. KEYS: project, queue (not used), transactions. ARGV: now,
-- first letter of the kind, from and to (as BYLEX takes them), how many to look at.
-- Returns what to go on behind, "" at the end; then of each the name, what is kept of it, "" or its moment, and whether
-- a commit of it is open ("1").

local now, kind, from, to, limit = number(), argument(), argument(), argument(), argument()
local t = transactions()
local hashes = { f = t.fences, p = t.producers, s = t.stages }

-- Servers of an earlier version list nothing: what they have made or removed is found out here.
local function rebuild()
  redis.call('UNLINK', t.work)
  for letter, hash in pairs(hashes) do
    local members = {}
    for _, name in ipairs(redis.call('HKEYS', hash)) do
      members[#members + 1], members[#members + 2] = 0, letter .. name
    end
    put('ZADD', t.work, members)
  end
end

-- When it came to where it is; "" if that was noted of another epoch or batch, or not at all.
local function moment_of(name, kept)
  local moment, place = string.match(redis.call('HGET', t.moments, kind .. name) or '', '^(%d+) (.*)$')
  if kind == 'p' then kept = string.sub(kept, struct.size(PRODUCER) + 1) end
  return moment and place == kept and moment or ''
end

-- nil if one of them is not there any more.
local function look()
  local members = redis.call('ZRANGE', t.work, from, to, 'BYLEX', 'LIMIT', 0, limit)
  local found = { #members == tonumber(limit) and members[#members] or '' }
  for _, member in ipairs(members) do
    local name = string.sub(member, 2)
    local kept = redis.call('HGET', hashes[kind], name)
    if not kept then return nil end
    if kind == 'f' or struct.unpack('>I8', kept) > now then
      local moment, is_open = moment_of(name, kept), kind == 'p' and redis.call('HEXISTS', t.open, name) == 1
      for _, value in ipairs({ name, kept, moment, is_open and '1' or '' }) do found[#found + 1] = value end
    end
  end
  return found
end

local there = 0
for _, hash in pairs(hashes) do there = there + redis.call('HLEN', hash) end
local found = there == redis.call('ZCARD', t.work) and look()
if not found then
  rebuild()
  found = look()
end
return found

---- script stage

-- Adds messages to a stage, all or none.
-- KEYS: project, queue, transactions, the stage's messages, answers if the request has a key.
-- ARGV: now, stage, queue, when a new stage expires, most bytes of bodies, most messages, least ttl in ms; with a key:
-- it, digest, until when it is kept, the answer; then each message as layout.draft packs it. Returns "".

local now, name, queue, ends = number(), argument(), argument(), number()
local most, most_messages, least = number(), number(), number()
local t, content = transactions(), KEYS[keys(1)]
local key, digest, expires, answer
local once = #KEYS > key_at and keys(2)
if once then
  key, digest, expires, answer = argument(), argument(), number(), argument()
  local repeated = known(once, key, now)
  if repeated then return repeated end
end

local stage = staged(redis.call('HGET', t.stages, name), now)
if not stage then
  drop(t, name, content)
  stage = { expires = ends, bytes = 0, queues = {} }
end
local former = stage.bytes
for at = argument_at + 1, #ARGV do stage.bytes = stage.bytes + struct.unpack('>I4', ARGV[at], DRAFT_SIZE_AT) end
local count = redis.call('LLEN', content) + #ARGV - argument_at
if stage.bytes > most or count > most_messages then return { 'full' } end

local index = #stage.queues + 1
for i, found in ipairs(stage.queues) do
  if found.name == queue then index = i end
end
stage.queues[index] = stage.queues[index] or { least = least, name = queue }
stage.queues[index].least = math.min(stage.queues[index].least, least)
local pieces = { struct.pack(STAGE, stage.expires, stage.bytes, #stage.queues) }
for i, found in ipairs(stage.queues) do
  pieces[i + 1] = struct.pack(STAGED_QUEUE, found.least, #found.name) .. found.name
end
redis.call('HSET', t.stages, name, table.concat(pieces))
redis.call('ZADD', t.staging, stage.expires, name)
if count == #ARGV - argument_at then redis.call('ZADD', t.work, 0, 's' .. name) end

local messages = {}
for at = argument_at + 1, #ARGV do messages[#messages + 1] = struct.pack('>I4', index) .. ARGV[at] end
put('RPUSH', content, messages)
count_staged(#messages, stage.bytes - former)
if once then remember_for(queue, once, key, digest, expires, answer) end
return ''

---- script stage_drop: allow-oom

-- Drops a stage. KEYS: project, queue (not used), transactions, the stage's messages. ARGV: stage. Returns "".

drop(transactions(), argument(), KEYS[keys(1)])
return ''

---- part publishing

-- Part of scripts that publish staged messages, whose moments count from 0.

-- Puts messages where they belong: `drafts` are as they were staged, `target_of` says which one an index means. Returns
-- how many bytes of bodies that is.
local function publish(drafts, target_of, now)
  local batches, bytes = {}, 0
  for _, draft in ipairs(drafts) do
    local index, delay, life, _, size, id = struct.unpack('>I4I8I8I8I4I2', draft)
    local batch = batches[index]
    if not batch then
      local target = target_of(index)
      batch = batch_for(target.q, target.full, now)
      batches[index] = batch
    end
    local available, expires = delay > 0 and now + delay or 0, now + life
    local first = ENTRY_SIZE - DRAFT_FRONT + 5
    append(batch, string.sub(draft, first, first + id - 1), available, expires, size,
      struct.pack('>I8', expires) .. string.sub(draft, 21))
    bytes = bytes + size
  end
  for _, batch in pairs(batches) do store(batch) end
  return bytes
end

---- script commit

-- Publishes stages and settles claims, all or nothing; or decides to, if that is more than one step may be.
-- KEYS: project, queue (not used), transactions, messages of each stage, queues of claims, each with its history if
-- there is one, targets: the queues of the staged messages; if it may be decided only, the lists of an open commit.
-- ARGV: now, producer, batch, when the producer expires, fence or "", epoch, numbers of stages, claims and targets,
-- most messages in a step and at all, bytes in a step, number of claims' queues, "" or what is kept of an open commit;
-- stages with what they are expected to be and with how many messages (-1: any number; -2: which do not count); claims'
-- queues' seconds of history with their full names; claims with the number of their queue; targets' full names.
-- Returns whether the batch was known (1 byte), whether it is open (1 byte), then what is kept of the producer. Refuses
-- with "restaged" if a stage is another than expected, so that there may be targets whose keys are not given, and with
-- "large" if it must be decided only and nothing is given for that.

local now, producer, batch, ends, fence, epoch = number(), argument(), argument(), number(), argument(), number()
local t, stages, claims = transactions(), {}, {}
local stage_count, claim_count, target_count = number(), number(), number()
local step, most, capacity, list_count, opening = number(), number(), number(), number(), argument()
for i = 1, stage_count do
  stages[i] = { name = argument(), expected = argument(), count = number(), content = KEYS[keys(1)] }
end

local function drop_all()
  for _, stage in ipairs(stages) do drop(t, stage.name, stage.content) end
end

-- Whether a batch is above another; both in digits, which may be more than a number of Lua has.
local function is_above(one, other) return #one > #other or #one == #other and one > other end

local last, is_open = redis.call('HGET', t.producers, producer), redis.call('HEXISTS', t.open, producer) == 1
if is_open and not last then return { 'running' } end
if last then
  local expires, _, _, first = struct.unpack(PRODUCER, last)
  local above = is_above(batch, string.sub(last, first))
  if is_open or expires > now and not above then
    if not above then drop_all() end
    return (above and '\0' or '\1') .. (is_open and '\1' or '\0') .. last
  end
end
local refused = fenced(t.fences, fence, epoch)
if refused then return refused end
local published, uncounted, size = 0, 0, 0
for _, stage in ipairs(stages) do
  local packed = redis.call('HGET', t.stages, stage.name)
  local found = staged(packed, now)
  if not found then return { 'unstaged', stage.name } end
  if packed ~= stage.expected then return { 'restaged' } end
  local count = redis.call('LLEN', stage.content)
  if stage.count >= 0 and stage.count ~= count then return { 'differs', stage.name, count, stage.count } end
  stage.queues = found.queues
  if stage.count == -2 then uncounted = uncounted + count else published = published + count end
  size = size + found.bytes
end

local lists = {}
for i = 1, list_count do
  lists[i] = { q = queue_at(keys(10)), h = history(number()) }
  lists[i].q.full = argument()
end

-- The members that a list has, and of them those with a claim end that is to come, by the index of claims alone.
local function split(q, list)
  local members, live, lapsed = members_in(list), {}, {}
  for first = 1, #members, SLICE do
    local scores = redis.call('ZMSCORE', q.claimed, unpack(members, first, math.min(first + SLICE - 1, #members)))
    for i, score in ipairs(scores) do
      local into = score and tonumber(score) > now and live or lapsed
      into[#into + 1] = members[first + i - 1]
    end
  end
  return table.concat(live), table.concat(lapsed)
end

-- All that the claim holds. A claim of a name that lapsed before has what is left of that one in front; the others have
-- the same end, unless it is noted that they may not.
local function members_of(q, claim)
  local list = redis.call('HGET', q.claims, claim) or ''
  if list == '' then return list, '' end
  local first = redis.call('ZSCORE', q.claimed, string.sub(list, 1, MEMBER_SIZE))
  local mixed = redis.call('HEXISTS', q.claims, MIXED .. claim) == 1
  if not mixed and first and tonumber(first) > now then return list, '' end
  return split(q, list)
end

local deleted = 0
for i = 1, claim_count do
  local claim = { id = argument(), list = number() + 1 }
  claim.q, claim.h = lists[claim.list].q, lists[claim.list].h
  claim.live, claim.lapsed = members_of(claim.q, claim.id)
  if claim.live == '' then return { 'lapsed', claim.id } end
  deleted = deleted + #claim.live / MEMBER_SIZE
  claims[i] = claim
end
local targets = {}
for _, target in ipairs(read_targets(target_count)) do targets[name_of(target.full)] = target end
if published + deleted > most then return { 'much', published + deleted, most } end
local large = published + uncounted + deleted > step or size > capacity
if large and opening == '' then return { 'large' } end

-- Keeps the messages of a claim for this commit: they are on no claim's list any more. The index entries of many, and
-- of grouped queues, are left as they are, for whoever comes across them, so that this step is a short one.
local function reserve_claim(claim, list)
  local is_grouped = redis.call('HEXISTS', claim.q.state, 'grouping') == 1
  if deleted <= SLICE and not is_grouped then reserve(claim.q, members_in(claim.live)) end
  redis.call('RPUSH', list, claim.live)
  if claim.lapsed ~= '' then
    redis.call('HSET', claim.q.claims, claim.id, claim.lapsed)
  else
    redis.call('HDEL', claim.q.claims, claim.id, HOLDER .. claim.id, MIXED .. claim.id)
  end
end

local function open()
  local first = keys(list_count + stage_count)
  for i = 0, list_count + stage_count - 1 do redis.call('UNLINK', KEYS[first + i]) end
  for _, claim in ipairs(claims) do reserve_claim(claim, KEYS[first + claim.list - 1]) end
  for i, stage in ipairs(stages) do
    redis.call('RENAME', stage.content, KEYS[first + list_count + i - 1])
    take_down(t, stage.name)
  end
  redis.call('HSET', t.open, producer, opening)
  redis.call('HSET', t.phase, producer, 0)
end

local function finish_all()
  for _, claim in ipairs(claims) do
    finish(claim.q, claim.h, in_sequence(load(claim.q, members_in(claim.live))), now, DELETED)
  end
  for _, stage in ipairs(stages) do
    local count = redis.call('LLEN', stage.content)
    for from = 0, count - 1, SLICE do
      local drafts = redis.call('LRANGE', stage.content, from, from + SLICE - 1)
      publish(drafts, function(index) return targets[stage.queues[index].name] end, now)
    end
  end
  drop_all()
end

if large then open() else finish_all() end
local kept = struct.pack(PRODUCER, ends, published, deleted) .. batch
redis.call('HSET', t.producers, producer, kept)
redis.call('ZADD', t.producing, ends, producer)
enlist(t, 'p' .. producer, now, batch)
return '\0' .. (large and '\1' or '\0') .. kept

---- script carry: allow-oom

-- One slice of an open commit: the next messages of one of its lists are deleted or published.
-- KEYS: project, queue (not used), transactions, the list; then of a list of claims the queue, with its history if
-- there is one, of a stage the targets. ARGV: now, producer, what is kept of the commit, number of the list, number of
-- lists, most messages, bytes; for claims "1", seconds of history and the full name, for a stage "0", number of
-- targets and their full names.
-- Returns 1 while something is left, 0 when nothing is.

local CHUNK = 8  -- messages read at first, and twice as many each time: bodies may be large
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
    local size = math.min(#item, (most - #members) * MEMBER_SIZE)
    for _, member in ipairs(members_in(string.sub(item, 1, size))) do members[#members + 1] = member end
    if size < #item then redis.call('LPUSH', list, string.sub(item, size + 1)) end
  end
  return members
end

local function settle()
  local q = queue_at(keys(10))
  local h = history(number())
  q.full = argument()
  -- What was purged or deleted meanwhile is not there.
  finish(q, h, in_sequence(load(q, next_members())), now, DELETED)
  return 0
end

local function publish_some()
  local targets, taken, bytes, chunk = read_targets(number()), 0, 0, CHUNK
  while taken < most and bytes < capacity do
    local drafts = redis.call('LRANGE', list, taken, math.min(taken + chunk, most) - 1)
    if #drafts == 0 then break end
    bytes = bytes + publish(drafts, function(index) return targets[index] end, now)
    taken, chunk = taken + #drafts, math.min(2 * chunk, SLICE)
  end
  count_staged(-taken, -bytes)
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

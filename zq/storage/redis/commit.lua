#!lua
-- SPDX-License-Identifier: Apache-2.0
-- Publishes stages and settles claims, all or nothing.
-- KEYS: project, queue (not used), transactions, messages of each stage, claims' queues, each with its history if there
-- is one, targets: the queues of the staged messages.
-- ARGV: now, producer, batch, when the producer expires, fence or "", epoch, numbers of stages, claims and targets;
-- stages with what they are expected to be; claims with seconds of history; targets' full names.
-- Returns whether the batch was known (1 byte), then what is kept of the producer. Refuses with "restaged" if a stage
-- is another than expected, so that there may be targets whose keys are not given.

local now, producer, batch, ends, fence, epoch = number(), argument(), argument(), number(), argument(), number()
local t, stages, claims = transactions(), {}, {}
local stage_count, claim_count, target_count = number(), number(), number()
for i = 1, stage_count do stages[i] = { name = argument(), expected = argument(), content = KEYS[keys(1)] } end

local function drop_all()
  for _, stage in ipairs(stages) do drop(t, stage.name, stage.content) end
end

-- Whether a batch is above another; both in digits, which may be more than a number of Lua has.
local function is_above(one, other) return #one > #other or #one == #other and one > other end

local last = redis.call('HGET', t.producers, producer)
if last then
  local expires, _, _, first = struct.unpack(PRODUCER, last)
  if expires > now and not is_above(batch, string.sub(last, first)) then
    drop_all()
    return '\1' .. last
  end
end
local refused = fenced(t.fences, fence, epoch)
if refused then return refused end
for _, stage in ipairs(stages) do
  local packed = redis.call('HGET', t.stages, stage.name)
  local found = staged(packed, now)
  if not found then return { 'unstaged' } end
  if packed ~= stage.expected then return { 'restaged' } end
  stage.queues = found.queues
end
for i = 1, claim_count do
  local id, q = argument(), queue_at(keys(9))
  claims[i] = { q = q, h = history(number()), messages = held(q, id, now) }
  if #claims[i].messages == 0 then return { 'lapsed' } end
end
local targets = {}
for _, target in ipairs(read_targets(target_count)) do targets[name_of(target.full)] = target end

local front = NEW .. struct.pack('>I8', now)

-- Puts staged messages, whose moments count from 0, where they belong.
local function publish(stage)
  local count = redis.call('LLEN', stage.content)
  for first = 0, count - 1, SLICE do
    local slice, batches = redis.call('LRANGE', stage.content, first, first + SLICE - 1), {}
    for at = 1, #slice, 2 do
      local record = slice[at]
      local index, _, delay, life, ttl = struct.unpack('>I4I8I8I8I8', record)
      local batch = batches[index]
      if not batch then
        local target = targets[stage.queues[index].name]
        batch = batch_for(target.q, target.full, now)
        batches[index] = batch
      end
      local available, rest = delay > 0 and now + delay or 0, string.sub(record, 13 + HEAD_SIZE)
      place(batch, id_of(record, 4), available, now + life, ttl, front, rest, slice[at + 1])
    end
    for _, batch in pairs(batches) do store(batch) end
  end
  return count / 2
end

local published_count, deleted = 0, 0
for _, claim in ipairs(claims) do
  finish(claim.q, claim.h, claim.messages, now, DELETED)
  deleted = deleted + #claim.messages
end
for _, stage in ipairs(stages) do published_count = published_count + publish(stage) end
drop_all()
local kept = struct.pack(PRODUCER, ends, published_count, deleted) .. batch
redis.call('HSET', t.producers, producer, kept)
redis.call('ZADD', t.producing, ends, producer)
return '\0' .. kept

-- SPDX-License-Identifier: Apache-2.0
-- Part of scripts that publish staged messages, whose moments count from 0.

local FRESH  -- what stands in the record of a message of this moment between ttl and tail

-- Puts messages where they belong: `drafts` are records and bodies in turn, `target_of` says which one an index means.
local function publish(drafts, target_of, now)
  FRESH = FRESH or NEW .. struct.pack('>I8', now)
  local batches = {}
  for at = 1, #drafts, 2 do
    local record = drafts[at]
    local index, _, delay, life, ttl = struct.unpack('>I4I8I8I8I8', record)
    local batch = batches[index]
    if not batch then
      local target = target_of(index)
      batch = batch_for(target.q, target.full, now)
      batches[index] = batch
    end
    local available, rest = delay > 0 and now + delay or 0, string.sub(record, 13 + HEAD_SIZE)
    place(batch, id_of(record, 4), available, now + life, ttl, FRESH, rest, drafts[at + 1])
  end
  for _, batch in pairs(batches) do store(batch) end
end

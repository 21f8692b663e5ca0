#!lua flags=allow-oom
-- SPDX-License-Identifier: Apache-2.0
-- Drops a stage. KEYS: project, queue (not used), transactions, the stage's messages. ARGV: stage. Returns "".

drop(transactions(), argument(), KEYS[keys(1)])
return ''

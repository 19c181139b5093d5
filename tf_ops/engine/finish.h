// How a request ends.
#pragma once

#include <memory>
#include <vector>

#include "tf_ops/common/status.h"
#include "tf_ops/engine/completion_queue.h"
#include "tf_ops/engine/event_log.h"
#include "tf_ops/negotiation/request_table.h"

namespace hvd {

// Tells `log` and appends what is to be called back: the request with `status`,
// and what was submitted under its name too early with an error. `global_rank`:
// this one. Nothing if `pending` is null.
void Finish(std::unique_ptr<PendingRequest> pending, const Status& status,
            int global_rank, EventLog* log,
            std::vector<Completion>* completions);

}  // namespace hvd

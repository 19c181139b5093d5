// The flight recorder of this process, and the thread that writes it.
#pragma once

#include <memory>
#include <string>

#include "tf_ops/common/status.h"
#include "tf_ops/engine/event.h"
#include "tf_ops/observe/flight_file.h"

namespace hvd {

// The one recorder, for all engines of this process. Never destroyed.
std::shared_ptr<EventObserver> TheFlightRecorder();

// Says who this process is, and where a record goes that nobody has given a
// path for; an empty `path`: nowhere. From the first call with a path on, a
// record is written there soon after a request has failed, at most once a
// second, and on SIGUSR2.
Status SetFlightFile(const FlightHeader& header, const std::string& path);

// From now on SIGUSR2 has Python's stacks written, too, after the record. For
// each byte that is sent to the socket `requests`, Python writes them by a
// thread of its own, which holds the GIL, and sends one back. If none comes
// soon, the handler writes them that `faulthandler` has set for SIGUSR2 before
// this call; it takes no GIL, and may crash where it reads frames that move.
void SetStackWriter(int requests);

// Says which batch `fit` takes, see FlightHeader. For any thread.
void SetFlightPosition(uint32_t epoch, uint32_t batch);

// Writes the record now, to `path`, or, if that is empty, where SetFlightFile
// said. For any thread.
Status WriteFlightRecord(const std::string& path, const std::string& reason);

}  // namespace hvd

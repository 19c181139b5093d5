// What the core says by itself, on the standard error.
#pragma once

#include <chrono>
#include <string>

namespace hvd {

// `rank`: of the job.
void LogWarning(int rank, const std::string& text);
void LogInfo(int rank, const std::string& text);

// The local time of day so long ago, "14:02:11".
std::string TimeOfDay(std::chrono::duration<double> ago);

}  // namespace hvd

#include "tf_ops/common/log.h"

#include <cstdio>
#include <ctime>

namespace hvd {

void LogWarning(int rank, const std::string& text) {
  LogInfo(rank, "warning: " + text);
}

void LogInfo(int rank, const std::string& text) {
  std::fprintf(stderr, "[hvd_keras, rank %d] %s\n", rank, text.c_str());
}

std::string TimeOfDay(std::chrono::duration<double> ago) {
  using std::chrono::system_clock;
  const system_clock::time_point then =
      system_clock::now() -
      std::chrono::duration_cast<system_clock::duration>(ago);
  const std::time_t seconds = system_clock::to_time_t(then);
  std::tm local{};
  char text[16];
  if (localtime_r(&seconds, &local) == nullptr ||
      std::strftime(text, sizeof(text), "%H:%M:%S", &local) == 0) {
    return "?";
  }
  return text;
}

}  // namespace hvd

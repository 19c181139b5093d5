// The level of vector instructions against what the kernel says of the CPU.
#include <fstream>
#include <string>

#include "tests/cc/check.h"
#include "tf_ops/collectives/vectors.h"

namespace hvd {
namespace {

#if defined(__x86_64__)
TEST_CASE("the level of vectors follows the kernel's list of flags") {
  std::ifstream file("/proc/cpuinfo");
  std::string line;
  while (line.rfind("flags", 0) != 0) REQUIRE(std::getline(file, line));
  const std::string flags = line + " ";
  const auto has = [&flags](const std::string& flag) {
    return flags.find(" " + flag + " ") != std::string::npos;
  };
  Vectors expected = Vectors::kBaseline;
  if (has("avx2") && has("fma") && has("f16c") && has("bmi2") && has("movbe")) {
    expected = Vectors::kV3;
    if (has("avx512f") && has("avx512bw") && has("avx512cd") &&
        has("avx512dq") && has("avx512vl")) {
      expected = Vectors::kV4;
    }
  }
  CHECK(FindVectors() == expected);
}
#else
TEST_CASE("machines other than x86-64 have one level") {
  CHECK(FindVectors() == Vectors::kBaseline);
}
#endif

}  // namespace
}  // namespace hvd

// The fuzz targets of tests/fuzz with inputs that are the same in every run.
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "tests/cc/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace hvd {
namespace {

#if HVD_SANITIZED
constexpr int kNumInputs = 10000;  // sanitizers are slow
#else
constexpr int kNumInputs = 300000;
#endif

TEST_CASE("changed control messages are refused, or read as they are") {
  std::mt19937 random(1);
  // Values that counts, lengths and enums make much of.
  const uint8_t telling[] = {0, 1, 2, 3, 4, 7, 0x7f, 0x80, 0xfe, 0xff};
  for (int i = 0; i < kNumInputs; ++i) {
    const size_t num_changes = random() % 5;
    std::vector<uint8_t> input = {static_cast<uint8_t>(random() % 64)};
    for (size_t k = 0; k < num_changes; ++k) {
      input.push_back(static_cast<uint8_t>(random()));
      input.push_back(static_cast<uint8_t>(random() % 2));
      input.push_back(random() % 2 == 0 ? telling[random() % sizeof(telling)]
                                        : static_cast<uint8_t>(random()));
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }
}

}  // namespace
}  // namespace hvd

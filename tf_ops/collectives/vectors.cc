#include "tf_ops/collectives/vectors.h"

#if defined(__x86_64__)
#include <cpuid.h>

#include <cstdint>
#endif

namespace hvd {
#if defined(__x86_64__)
namespace {

bool HasAll(uint32_t bits, uint32_t wanted) {
  return (bits & wanted) == wanted;
}

// XCR0: which registers the operating system saves.
uint32_t SavedRegisters() {
  uint32_t low, high;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

Vectors FindVectors() {
  uint32_t eax, ebx, ecx, edx, extended_ecx;
  constexpr uint32_t v3_1 =
      bit_FMA | bit_MOVBE | bit_OSXSAVE | bit_AVX | bit_F16C;
  constexpr uint32_t v3_7 = bit_AVX2 | bit_BMI | bit_BMI2;
  constexpr uint32_t v4_7 =
      bit_AVX512F | bit_AVX512BW | bit_AVX512CD | bit_AVX512DQ | bit_AVX512VL;
  constexpr uint32_t ymm = 0x6;   // halves of 128 bits
  constexpr uint32_t zmm = 0xe6;  // and masks, upper halves, registers 16-31

  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || !HasAll(ecx, v3_1)) {
    return Vectors::kBaseline;
  }
  if (__get_cpuid(0x80000001, &eax, &ebx, &extended_ecx, &edx) == 0 ||
      !HasAll(extended_ecx, bit_LZCNT)) {
    return Vectors::kBaseline;
  }
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0 ||
      !HasAll(ebx, v3_7) || !HasAll(SavedRegisters(), ymm)) {
    return Vectors::kBaseline;
  }
  if (!HasAll(ebx, v4_7) || !HasAll(SavedRegisters(), zmm)) return Vectors::kV3;
  return Vectors::kV4;
}
#else
Vectors FindVectors() { return Vectors::kBaseline; }
#endif

}  // namespace hvd

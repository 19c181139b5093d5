#include "tf_ops/records/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace hvd {
namespace {

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[n][byte]: what a byte does to the checksum n bytes later.
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0);
    }
    tables[0][byte] = crc;
  }
  for (int n = 1; n < 8; ++n) {
    for (int byte = 0; byte < 256; ++byte) {
      const uint32_t crc = tables[n - 1][byte];
      tables[n][byte] = (crc >> 8) ^ tables[0][crc & 0xff];
    }
  }
  return tables;
}

constexpr Tables kTables = MakeTables();

struct ByTables {
  static uint32_t WithByte(uint32_t crc, uint8_t byte) {
    return (crc >> 8) ^ kTables[0][(crc ^ byte) & 0xff];
  }
  static uint32_t WithWord(uint32_t crc, uint64_t word) {
    word ^= crc;
    uint32_t result = 0;
    for (int n = 0; n < 8; ++n) {
      result ^= kTables[7 - n][(word >> (8 * n)) & 0xff];
    }
    return result;
  }
};

// Assembly needs no compiler that is told of the instruction.
#if defined(__x86_64__)
struct ByInstruction {
  static bool is_there() {
    uint32_t eax, ebx, ecx, edx;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 &&
           (ecx & bit_SSE4_2) != 0;
  }
  static uint32_t WithByte(uint32_t crc, uint8_t byte) {
    __asm__("crc32b %1, %0" : "+r"(crc) : "rm"(byte));
    return crc;
  }
  static uint32_t WithWord(uint32_t crc, uint64_t word) {
    uint64_t wide = crc;
    __asm__("crc32q %1, %0" : "+r"(wide) : "rm"(word));
    return static_cast<uint32_t>(wide);
  }
};
#elif defined(__aarch64__)
struct ByInstruction {
  static bool is_there() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
  static uint32_t WithByte(uint32_t crc, uint8_t byte) {
    const uint32_t wide = byte;
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1"
            : "+r"(crc)
            : "r"(wide));
    return crc;
  }
  static uint32_t WithWord(uint32_t crc, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1"
            : "+r"(crc)
            : "r"(word));
    return crc;
  }
};
#else
struct ByInstruction : ByTables {
  static bool is_there() { return false; }
};
#endif

template <typename Way>
uint32_t Compute(const void* data, size_t size) {
  const char* bytes = static_cast<const char*>(data);
  uint32_t crc = 0xffffffffu;
  for (; size >= sizeof(uint64_t); size -= sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, bytes, sizeof(word));
    crc = Way::WithWord(crc, word);
    bytes += sizeof(word);
  }
  for (; size > 0; --size) {
    crc = Way::WithByte(crc, static_cast<uint8_t>(*bytes++));
  }
  return ~crc;
}

}  // namespace

uint32_t Crc32cByTables(const void* data, size_t size) {
  return Compute<ByTables>(data, size);
}

uint32_t Crc32c(const void* data, size_t size) {
  static const bool has_instruction = ByInstruction::is_there();
  return has_instruction ? Compute<ByInstruction>(data, size)
                         : Crc32cByTables(data, size);
}

}  // namespace hvd

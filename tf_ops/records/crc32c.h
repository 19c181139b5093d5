// The checksum of TFRecord files.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hvd {

// CRC-32C (RFC 3720, B.4), by the instruction for it if the CPU has one.
uint32_t Crc32c(const void* data, size_t size);

// The same by tables alone.
uint32_t Crc32cByTables(const void* data, size_t size);

// What a TFRecord file stores of it: checksums of data that hold checksums
// would be weak.
inline uint32_t MaskedCrc32c(const void* data, size_t size) {
  const uint32_t crc = Crc32c(data, size);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace hvd

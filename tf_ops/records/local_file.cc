#include "tf_ops/records/local_file.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace hvd {

Status LocalFile::Open(const std::string& path, LocalFile* file) {
  // A pipe would have us wait for who writes into it.
  Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found;
  if (!fd.is_open() || fstat(fd.get(), &found) != 0) {
    return Status::InvalidArgument(path + ": " + std::strerror(errno));
  }
  if (!S_ISREG(found.st_mode)) {
    return Status::InvalidArgument(path + ": no regular file");
  }
  file->path_ = path;
  file->fd_ = std::move(fd);
  file->num_bytes_ = found.st_size;
  return Status::Ok();
}

void LocalFile::ReadExactly() {
  posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_RANDOM);
}

Status LocalFile::Damaged(RecordPlace place, const char* what) const {
  return Status::DamagedFile(path_ + ": record " +
                             std::to_string(place.record) + ", at byte " +
                             std::to_string(place.offset) + ": " + what);
}

Status LocalFile::Read(int64_t offset, int64_t size, char* bytes) const {
  while (size > 0) {
    const ssize_t count = pread(fd_.get(), bytes, size, offset);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      return Status::Internal(path_ + ", at byte " + std::to_string(offset) +
                              ": " +
                              (count < 0 ? std::strerror(errno) : "it ends"));
    }
    bytes += count;
    offset += count;
    size -= count;
  }
  return Status::Ok();
}

}  // namespace hvd

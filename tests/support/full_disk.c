// Preloaded: a disk that is full after a number of bytes, for files below one folder.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char under[4096];
static long left = -1, written = 0;

// Let files below `folder` take `bytes` more; below 0: any number. Returns the bytes written below it since the last call.
long full_disk(const char* folder, long bytes) {
  long before = written;
  snprintf(under, sizeof under, "%s", folder);
  left = bytes;
  written = 0;
  return before;
}

ssize_t write(int fd, const void* data, size_t size) {
  static ssize_t (*real)(int, const void*, size_t);
  if (!real) real = (ssize_t(*)(int, const void*, size_t))dlsym(RTLD_NEXT, "write");
  if (!under[0]) return real(fd, data, size);
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return real(fd, data, size);
  path[n] = 0;
  if (strncmp(path, under, strlen(under))) return real(fd, data, size);
  if (left >= 0 && (long)size > left - written) {
    if (left - written <= 0) {
      errno = ENOSPC;
      return -1;
    }
    size = (size_t)(left - written);
  }
  ssize_t done = real(fd, data, size);
  if (done > 0) written += done;
  return done;
}

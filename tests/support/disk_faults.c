// Preloaded: faults of a disk, for files below one folder. It is full after a number of bytes, or the process is killed
// at its n-th change of a file there: in the middle of a write, or instead of any other system call.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

static char under[PATH_MAX];
static long left = -1, written = 0, fatal = 0, changes = 0;

// Let files below `folder` take `bytes` more; below 0: any number. Returns the bytes written below it since the last call.
long full_disk(const char* folder, long bytes) {
  long before = written;
  snprintf(under, sizeof under, "%s", folder);
  left = bytes;
  written = 0;
  return before;
}

// Kill this process at the n-th change below `folder`; 0: never. Returns the changes below it since the last call.
long kill_at(const char* folder, long n) {
  long before = changes;
  snprintf(under, sizeof under, "%s", folder);
  fatal = n;
  changes = 0;
  return before;
}

static int below(const char* path) { return under[0] && !strncmp(path, under, strlen(under)); }

static int fd_below(int fd) {
  if (!under[0]) return 0;
  char link[64], path[PATH_MAX];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return below(path);
}

static int at_below(int folder, const char* path) {
  return path[0] == '/' || folder == AT_FDCWD ? below(path) : fd_below(folder);
}

static int last_one(void) { return ++changes == fatal; }
static void die(void) { kill(getpid(), SIGKILL); }
static void changed(int here) {
  if (here && last_one()) die();
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

ssize_t write(int fd, const void* data, size_t size) {
  if (!fd_below(fd)) return REAL(write)(fd, data, size);
  if (last_one()) {
    REAL(write)(fd, data, size / 2);
    die();
  }
  if (left >= 0 && (long)size > left - written) {
    if (left - written <= 0) {
      errno = ENOSPC;
      return -1;
    }
    size = (size_t)(left - written);
  }
  ssize_t done = REAL(write)(fd, data, size);
  if (done > 0) written += done;
  return done;
}

ssize_t writev(int fd, const struct iovec* data, int count) {
  changed(fd_below(fd));
  return REAL(writev)(fd, data, count);
}

ssize_t pwrite64(int fd, const void* data, size_t size, off64_t at) {
  changed(fd_below(fd));
  return REAL(pwrite64)(fd, data, size, at);
}

int fsync(int fd) {
  changed(fd_below(fd));
  return REAL(fsync)(fd);
}

int ftruncate64(int fd, off64_t size) {
  changed(fd_below(fd));
  return REAL(ftruncate64)(fd, size);
}

int rename(const char* from, const char* to) {
  changed(below(to));
  return REAL(rename)(from, to);
}

int symlink(const char* what, const char* path) {
  changed(below(path));
  return REAL(symlink)(what, path);
}

int unlink(const char* path) {
  changed(below(path));
  return REAL(unlink)(path);
}

int unlinkat(int folder, const char* path, int flags) {
  changed(at_below(folder, path));
  return REAL(unlinkat)(folder, path, flags);
}

int rmdir(const char* path) {
  changed(below(path));
  return REAL(rmdir)(path);
}

int mkdir(const char* path, mode_t mode) {
  changed(below(path));
  return REAL(mkdir)(path, mode);
}

int open64(const char* path, int flags, ...) {
  mode_t mode = 0;
  if (flags & O_CREAT) {
    va_list more;
    va_start(more, flags);
    mode = va_arg(more, mode_t);
    va_end(more);
    changed(below(path));
  }
  return REAL(open64)(path, flags, mode);
}

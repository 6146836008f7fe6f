/* A clock, a disk and locks that fail, for the processes that preload this library.
 *
 * The file named by FAULTY_CONTROL is mapped; a test writes its numbers while the processes run
 * (see support/faulty_libc.py, which has the same order). Disk faults concern the files whose path
 * contains FAULTY_PATH.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum { CLOCK_OFFSET, CLOCK_STOPPED_AT, SYNC_FAILURES, SYNC_ERROR, WRITES_BEFORE, WRITE_FAILURES,
       WRITE_ERROR, IS_SHORT, LOCK_ERROR, FAILED, NUMBERS };

static long long none[NUMBERS];
static volatile long long *control = none;
static const char *path_part;

__attribute__((constructor)) static void map_control(void)
{
    const char *name = getenv("FAULTY_CONTROL");
    int descriptor = name ? open(name, O_RDWR | O_CLOEXEC) : -1;
    void *page;
    path_part = getenv("FAULTY_PATH");
    if (descriptor < 0)
        return;
    page = mmap(NULL, sizeof none, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    close(descriptor);
    if (page != MAP_FAILED)
        control = page;
}

static long long now(void)
{
    struct timespec real;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &real);
    if (control[CLOCK_STOPPED_AT])
        return control[CLOCK_STOPPED_AT];
    return real.tv_sec * 1000000000LL + real.tv_nsec + control[CLOCK_OFFSET];
}

int clock_gettime(clockid_t clock, struct timespec *result)
{
    long long time;
    if (clock != CLOCK_REALTIME)
        return syscall(SYS_clock_gettime, clock, result);
    time = now();
    result->tv_sec = time / 1000000000LL;
    result->tv_nsec = time % 1000000000LL;
    return 0;
}

int gettimeofday(struct timeval *result, void *zone)
{
    long long time = now();
    (void)zone;
    result->tv_sec = time / 1000000000LL;
    result->tv_usec = time % 1000000000LL / 1000;
    return 0;
}

time_t time(time_t *result)
{
    time_t seconds = now() / 1000000000LL;
    if (result)
        *result = seconds;
    return seconds;
}

static int is_faulty(int descriptor)
{
    char link[64], path[4096];
    ssize_t size;
    if (!path_part)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    size = readlink(link, path, sizeof path - 1);
    if (size < 0)
        return 0;
    path[size] = 0;
    return strstr(path, path_part) != NULL;
}

/* Counts one call down; a negative number of failures is never used up. */
static int is_due(int failures)
{
    if (!control[failures])
        return 0;
    if (control[failures] > 0)
        __sync_fetch_and_sub(&control[failures], 1);
    __sync_fetch_and_add(&control[FAILED], 1);
    return 1;
}

static int fail_sync(int descriptor)
{
    return control[SYNC_FAILURES] && is_faulty(descriptor) && is_due(SYNC_FAILURES);
}

int fsync(int descriptor)
{
    if (fail_sync(descriptor)) {
        errno = control[SYNC_ERROR];
        return -1;
    }
    return syscall(SYS_fsync, descriptor);
}

int fdatasync(int descriptor)
{
    if (fail_sync(descriptor)) {
        errno = control[SYNC_ERROR];
        return -1;
    }
    return syscall(SYS_fdatasync, descriptor);
}

static int fail_write(int descriptor)
{
    if (!control[WRITE_FAILURES] || !is_faulty(descriptor))
        return 0;
    if (control[WRITES_BEFORE] > 0) {
        __sync_fetch_and_sub(&control[WRITES_BEFORE], 1);
        return 0;
    }
    return is_due(WRITE_FAILURES);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off_t offset)
{
    if (fail_write(descriptor)) {
        if (control[IS_SHORT])
            return syscall(SYS_pwrite64, descriptor, data, size > 1 ? size / 2 : size, offset);
        errno = control[WRITE_ERROR];
        return -1;
    }
    return syscall(SYS_pwrite64, descriptor, data, size, offset);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t offset)
{
    return pwrite64(descriptor, data, size, offset);
}

static int fail_space(int descriptor)
{
    return control[WRITE_FAILURES] && !control[IS_SHORT] && !control[WRITES_BEFORE]
        && is_faulty(descriptor);
}

int posix_fallocate64(int descriptor, off_t offset, off_t size)
{
    if (fail_space(descriptor))
        return control[WRITE_ERROR];
    return syscall(SYS_fallocate, descriptor, 0, offset, size) ? errno : 0;
}

int posix_fallocate(int descriptor, off_t offset, off_t size)
{
    return posix_fallocate64(descriptor, offset, size);
}

ssize_t write(int descriptor, const void *data, size_t size)
{
    if (fail_space(descriptor)) {
        errno = control[WRITE_ERROR];
        return -1;
    }
    return syscall(SYS_write, descriptor, data, size);
}

int flock(int descriptor, int operation)
{
    if (control[LOCK_ERROR] && is_faulty(descriptor)) {
        errno = control[LOCK_ERROR];
        return -1;
    }
    return syscall(SYS_flock, descriptor, operation);
}

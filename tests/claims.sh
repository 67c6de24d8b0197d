# What the tests in shell claim with. The file that reads this one sets patience_s: how long something may take, in seconds.

not() {
    if "$@"; then return 1; fi
}

eventually() {
    local try
    for ((try = 0; try < patience_s * 10; try++)); do
        if "$@" >/dev/null 2>&1; then return 0; fi
        sleep 0.1
    done
    echo "not within $patience_s s: $*" >&2
    return 1
}

# page ADDRESS [SECONDS]: the page of a web server. The limit is shorter where no answer is expected.
page() {
    timeout "${2:-$patience_s}" busybox wget -qO- "http://$1/"
}

# serves ADDRESS...: each has the page of the tests' image. In an `if` nothing ends at the first failure.
serves() {
    local address
    for address in "$@"; do [[ $(page "$address") == hello ]] || return 1; done
}

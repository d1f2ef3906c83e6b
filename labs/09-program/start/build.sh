# Builds ./transfer with the libraries of the fabric that is up: mrclab exec h0 -- sh build.sh
set -eu
gcc -std=gnu11 -O2 -Wall -Wextra -o transfer program.c transfer.c "-L${LD_LIBRARY_PATH%%:*}" -l:lib_mrc.so -libverbs

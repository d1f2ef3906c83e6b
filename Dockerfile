# mrclab with the reference switch in it: `docker compose run --rm lab`. See docs/docker.md.
#
#   program   the switch program, compiled by p4lang's p4c
#   bmv2      simple_switch_grpc with the libraries it needs, out of p4lang's image
#   core      the MRC core, compiled; the compiler stays behind
#   ebpf      mrclab on the kernel target; needs none of p4lang's images, so any architecture will do
#   lab       that, BMv2, and p4c for the labs: what compose uses
#
# One release of p4lang's compiler image holds a p4c and the BMv2 it was built upon. BMv2 comes out of another
# image with --build-arg BMV2_IMAGE=...; its base must be that of BASE_IMAGE, for they share a libc.
ARG P4C_IMAGE=p4lang/p4c:1.2.5.13
ARG BMV2_IMAGE=p4lang/p4c:1.2.5.13
ARG BASE_IMAGE=ubuntu:24.04

FROM ${P4C_IMAGE} AS program
COPY mrclab/__init__.py /build/mrclab/
COPY p4src /build/mrclab/p4src
RUN cd /build && python3 -m mrclab.p4src.compile
# The compiler itself, for the labs, with its libraries (all but libc's own parts) and include files.
RUN set -e; p4c=$(command -v p4c-bm2-ss); mkdir -p /opt/p4c/bin /opt/p4c/lib; cp -L "$p4c" /opt/p4c/bin/; \
    cp -rL "$(dirname "$p4c")/../share/p4c/p4include" /opt/p4c/; \
    ldd "$p4c" | awk '$3 ~ "^/" { print $3 }' \
    | grep -vE '/lib(c|m|dl|rt|pthread|resolv)\.so' | xargs -I '{}' cp -L '{}' /opt/p4c/lib/; \
    printf '#!/bin/sh\nexport P4C_16_INCLUDE_PATH=/opt/p4c/p4include\nLD_LIBRARY_PATH=/opt/p4c/lib exec /opt/p4c/bin/p4c-bm2-ss "$@"\n' \
    > /opt/p4c/p4c-bm2-ss; \
    chmod 755 /opt/p4c/p4c-bm2-ss; \
    /opt/p4c/p4c-bm2-ss --version

FROM ${BMV2_IMAGE} AS bmv2
# All but libc's own parts, into a directory of their own: Python must not meet them.
RUN set -e; mkdir -p /opt/bmv2/bin /opt/bmv2/lib; \
    cp -L "$(command -v simple_switch_grpc)" /opt/bmv2/bin/; \
    ldd /opt/bmv2/bin/simple_switch_grpc | awk '$3 ~ "^/" { print $3 }' \
    | grep -vE '/lib(c|m|dl|rt|pthread|resolv)\.so' | xargs -I '{}' cp -L '{}' /opt/bmv2/lib/; \
    printf '#!/bin/sh\nLD_LIBRARY_PATH=/opt/bmv2/lib exec /opt/bmv2/bin/simple_switch_grpc "$@"\n' \
    > /opt/bmv2/simple_switch_grpc; \
    chmod 755 /opt/bmv2/simple_switch_grpc; \
    /opt/bmv2/simple_switch_grpc --version

FROM ${BASE_IMAGE} AS core
ENV DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends gcc libc6-dev python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /mrclab
RUN python3 -m venv .venv && .venv/bin/pip install --no-cache-dir --quiet mypy==2.4.1 'setuptools>=78.1.1' zlib-ng
COPY mrclab/__init__.py mrclab/
COPY p4src mrclab/p4src
COPY simulator mrclab/simulator
COPY hosts mrclab/hosts
# Where it does not compile (exit 3) the core runs in pure Python, and `mrclab doctor` says so.
RUN .venv/bin/python -m mrclab.hosts.compile || { [ $? = 3 ] && mkdir -p .venv/mrclab-core; }

# The C libraries of `mrclab exec`.
FROM core AS native
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends libibverbs-dev \
    && rm -rf /var/lib/apt/lists/*
COPY linux mrclab/linux
COPY native mrclab/native
RUN .venv/bin/python -m mrclab.native.build

FROM ${BASE_IMAGE} AS ebpf
ENV DEBIAN_FRONTEND=noninteractive PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends \
       ethtool iproute2 iputils-ping make procps python3 python3-venv tcpdump \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /mrclab
# What mrclab depends on, before mrclab itself: editing Python then rebuilds in seconds.
COPY pyproject.toml ./
RUN python3 -m venv .venv \
    && python3 -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
       print(*p["build-system"]["requires"], *p["project"]["dependencies"], *(need for extra in ("testbed", "live", "labs") for need in p["project"]["optional-dependencies"][extra] if not need.startswith("mrclab[")), sep="\n")' > /tmp/needs \
    && .venv/bin/pip install --no-cache-dir --quiet -r /tmp/needs && rm /tmp/needs
ENV PATH=/mrclab/.venv/bin:$PATH
# p4runtime-shell's own environment: a container without a network cannot make it later.
ENV MRCLAB_CACHE=/opt/mrclab-cache
COPY mrclab/shell_environment.py /tmp/
RUN python3 /tmp/shell_environment.py
COPY . .
COPY --from=core /mrclab/.venv/mrclab-core .venv/mrclab-core
COPY --from=native /mrclab/.venv/mrclab-native .venv/mrclab-native
# The mark that everything is in place: `make` then installs nothing.
RUN .venv/bin/pip install --no-cache-dir --quiet --no-deps --no-build-isolation -e . && touch .venv/.ready
ENTRYPOINT ["/mrclab/docker/entrypoint.sh"]
CMD ["make", "run-experiment"]

FROM ebpf AS lab
# p4c runs the C preprocessor; lab 1 makes packets with scapy, which mrclab itself does not need.
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends cpp && rm -rf /var/lib/apt/lists/* \
    && .venv/bin/pip install --no-cache-dir --quiet 'scapy>=2.6'
COPY --from=bmv2 /opt/bmv2 /opt/bmv2
COPY --from=program /opt/p4c /opt/p4c
RUN ln -s /opt/bmv2/simple_switch_grpc /opt/p4c/p4c-bm2-ss /usr/local/bin/
COPY --from=program /build/mrclab/p4src/build /mrclab/p4src/build

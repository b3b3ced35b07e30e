# Wisp's images: no shell, no package manager, no compiler; a numeric user; a root filesystem that may be read-only.
#
#   docker build --target operator .                            operator and gateway: no CUDA, no NumPy
#   docker build --target runtime .                             runtime for NVIDIA GPUs (driver 580 or newer)
#   docker build --target runtime --build-arg FLAVOUR=cpu .     runtime for the CPU
#
# BASE is a Debian, with Python 3.11 or newer or with an apt that has it; nothing of it but Python, the libraries that
# Python needs and the certificates ends in an image. .ci/release/pin_base.sh raises the digest; tests/cluster/images.sh builds
# from a debootstrapped one.
ARG BASE=docker.io/library/debian:trixie-20260918-slim@sha256:a99cfc517144bc59b1978475ec53b46ecabec7e43635402ee5b77cc54cd1b20a

# tools: Python, pip, the build backend and an empty virtual environment.
FROM ${BASE} AS tools
RUN command -v python3 >/dev/null || { apt-get update && \
    apt-get install -y --no-install-recommends python3 python3-venv ca-certificates && rm -rf /var/lib/apt/lists/*; }
ARG PIP_INDEX_URL=https://pypi.org/simple
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
COPY .ci/requirements/build.txt ./
RUN python3 -m venv /tools && /tools/bin/pip install --quiet --require-hashes -r build.txt && \
    python3 -m venv --without-pip /opt/wisp && rm /opt/wisp/bin/[Aa]ctivate*

# system: the interpreter, the part of its standard library that servers use, the shared libraries below, one user.
FROM tools AS system
RUN set -eu; root=/rootfs; \
    python=$(readlink -f "$(command -v python3)"); \
    stdlib=$(python3 -c 'import sysconfig; print(sysconfig.get_path("stdlib"))'); \
    mkdir -p $root/etc/ssl/certs $root/usr/bin $root/usr/lib $root/usr/lib64 $root/usr/sbin; \
    for link in bin sbin lib lib64; do ln -s usr/$link $root/$link; done; \
    cp -a --parents "$python" "$(command -v python3)" "$stdlib" $root; \
    (cd "$root$stdlib" && rm -rf test idlelib lib2to3 ensurepip venv tkinter turtledemo turtle.py pydoc_data config-* \
      EXTERNALLY-MANAGED dist-packages site-packages sitecustomize.py \
      lib-dynload/*test* lib-dynload/xx* lib-dynload/_curses* lib-dynload/readline* lib-dynload/_*dbm* lib-dynload/_sqlite3*); \
    find $root -name __pycache__ -prune -exec rm -rf {} +; \
    { find "$root$python" "$root$stdlib/lib-dynload" -type f -exec ldd {} + | grep -o '/[^ ]*\.so[^ :]*$\|/[^ ]*\.so[^ :]* ('; \
      ldconfig -p | grep -o '/[^ ]*/lib\(stdc++\|gcc_s\|m\|rt\|pthread\|dl\)\.so\.[0-9]$'; } | tr -d ' (' | sort -u >/libraries; \
    while read -r library; do mkdir -p "$root$(dirname "$library")"; cp -L "$library" "$root$library"; done </libraries; \
    cp -a /etc/ld.so.conf /etc/ld.so.conf.d /etc/os-release $root/etc/; ldconfig -r $root; \
    echo 'hosts: files dns' >$root/etc/nsswitch.conf; \
    echo 'wisp:x:65532:65532:Wisp:/tmp:/usr/sbin/nologin' >$root/etc/passwd; echo 'wisp:x:65532:' >$root/etc/group; \
    mkdir -m 1777 $root/tmp; mkdir $root/cache; chown 65532:65532 $root/cache

FROM scratch AS python
COPY --from=system /rootfs /
COPY --from=tools /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/
ENV PATH=/opt/wisp/bin PYTHONSAFEPATH=1 PYTHONUNBUFFERED=1 SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt HOME=/tmp

# dependencies: what .ci/requirements/ locks for an image, each file by its hash, wherever the index has it from.
FROM tools AS dependencies
RUN printf '%s\n' "set -e; /tools/bin/pip --python /opt/wisp/bin/python3 install --quiet --no-compile --require-hashes -r \$1" \
      "cd /opt/wisp/lib/python3*/site-packages" \
      "rm -rf kubernetes/aio kubernetes/e2e_test cupy/_core/include" \
      "find /opt/wisp/bin -type f -delete" \
      "find . -type d -name tests -prune -exec rm -rf {} +" \
      "find . -name '*.py[ixd]' -type f -delete" >install.sh

FROM dependencies AS operator-dependencies
COPY .ci/requirements/operator.txt ./
RUN sh install.sh operator.txt

FROM dependencies AS runtime-dependencies
ARG FLAVOUR=cuda
COPY .ci/requirements/runtime-$FLAVOUR.txt ./
RUN sh install.sh runtime-$FLAVOUR.txt

# kernels: cubins for every GPU that there is a folder for, and of the compiler nothing. Only what compiling needs is copied,
# so that a change of anything else compiles nothing again.
FROM tools AS kernels
ARG FLAVOUR=cuda
COPY .ci/requirements/kernels.txt ./
RUN [ $FLAVOUR != cuda ] || { apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/* && \
    /tools/bin/pip install --quiet --require-hashes -r kernels.txt; }
COPY runtime/wisp_plan/__init__.py runtime/wisp_plan/distribution.py runtime/wisp_plan/errors.py runtime/wisp_plan/units.py runtime/wisp_plan/
COPY runtime/wisp_plan/memory/__init__.py runtime/wisp_plan/memory/batch_sizes.py runtime/wisp_plan/memory/
COPY runtime/wisp_runtime/__init__.py runtime/wisp_runtime/config.py runtime/wisp_runtime/errors.py runtime/wisp_runtime/setting_fields.py runtime/wisp_runtime/setting_parsers.py runtime/wisp_runtime/
COPY runtime/wisp_runtime/cli/__init__.py runtime/wisp_runtime/cli/main.py runtime/wisp_runtime/cli/failures.py runtime/wisp_runtime/cli/kernels.py runtime/wisp_runtime/cli/
COPY runtime/wisp_runtime/ops/__init__.py runtime/wisp_runtime/ops/
COPY runtime/wisp_runtime/ops/cuda/__init__.py runtime/wisp_runtime/ops/cuda/
COPY runtime/wisp_runtime/ops/cuda/device/__init__.py runtime/wisp_runtime/ops/cuda/device/build.py runtime/wisp_runtime/ops/cuda/device/catalogue.py runtime/wisp_runtime/ops/cuda/device/manifest.py runtime/wisp_runtime/ops/cuda/device/
COPY kernels kernels
RUN mkdir -p /opt/wisp/kernels && { [ $FLAVOUR != cuda ] || \
    PYTHONPATH=runtime /tools/bin/python -c "from wisp_runtime.cli.main import main; main()" kernels build --out /opt/wisp/kernels; }

# code: our own packages, each image with its own plane and what both share.
FROM tools AS code
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
COPY runtime runtime
COPY kernels kernels
RUN /tools/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir /wheel . && \
    /tools/bin/pip --python /opt/wisp/bin/python3 install --quiet --no-deps --no-compile /wheel/*.whl

FROM code AS operator-code
RUN rm -rf /opt/wisp/bin/wisp-runtime /opt/wisp/lib/python3*/site-packages/wisp_runtime

FROM code AS runtime-code
RUN rm -rf /opt/wisp/bin/wisp /opt/wisp/bin/wisp-gateway /opt/wisp/lib/python3*/site-packages/wisp_operator \
      /opt/wisp/lib/python3*/site-packages/wisp_gateway /opt/wisp/lib/python3*/site-packages/wisp_names

# The imports below are how bytecode gets into a layer: Python writes it for what is used, and for nothing else.
FROM python AS operator
COPY --from=operator-dependencies /opt/wisp /opt/wisp
RUN ["python3", "-c", "import aiohttp.web, httptools, kopf, kubernetes.client, kubernetes.config, rich.live, uvicorn, uvloop"]
COPY --from=operator-code /opt/wisp /opt/wisp
RUN ["python3", "-c", "import importlib, pkgutil, wisp_gateway, wisp_http, wisp_names, wisp_operator, wisp_plan\nfor p in (wisp_gateway, wisp_http, wisp_names, wisp_operator, wisp_plan):\n    for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.'):\n        m.name.endswith('__main__') or importlib.import_module(m.name)"]
ENV PYTHONDONTWRITEBYTECODE=1
USER 65532:65532
EXPOSE 8080 8081
ENTRYPOINT ["python3", "-m", "wisp_operator.main"]

FROM python AS runtime
COPY --from=runtime-dependencies /opt/wisp /opt/wisp
RUN ["python3", "-c", "import importlib.util as u, fastapi, huggingface_hub, jinja2, llguidance, ml_dtypes, numpy, safetensors, tokenizers, uvicorn, uvloop\nif u.find_spec('cupy'): import cupy, cuda.bindings.driver"]
COPY --from=kernels /opt/wisp/kernels /opt/wisp/kernels
COPY --from=runtime-code /opt/wisp /opt/wisp
RUN ["python3", "-c", "import importlib, pkgutil, wisp_http, wisp_plan, wisp_runtime\nfor p in (wisp_http, wisp_plan, wisp_runtime):\n    for m in pkgutil.walk_packages(p.__path__, p.__name__ + '.'):\n        try:\n            '.convert' in m.name or importlib.import_module(m.name)\n        except ModuleNotFoundError as e:\n            if e.name not in ('cupy', 'cuda'): raise"]
ENV PYTHONDONTWRITEBYTECODE=1 NVIDIA_DRIVER_CAPABILITIES=compute,utility WISP_KERNELS=/opt/wisp/kernels
USER 65532:65532
EXPOSE 8000
ENTRYPOINT ["wisp-runtime"]

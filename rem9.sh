. /work/scratch/machine/env.sh
cd /work/scratch/machine/frozen7
export PYTHONPATH=$PWD TRITON_CACHE_DIR=/work/scratch/machine/tcache8 ATTNVERIFY_CACHE_DIR=/work/scratch/machine/nvcache
for i in 1 2; do /work/tools/slot python /work/scratch/machine/reasons.py /work/scratch/machine/rem9.json 840 >> /work/scratch/machine/rem9.log 2>&1;  grep -q whole /work/scratch/machine/rem9.log && break; done

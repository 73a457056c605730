"""Logging in four ways, as the tutorial shows it.

Other than there: one script for all, with a logger of its own for each.
"""

import logging

# 1. the global configuration of logging
logging.basicConfig(
    level=logging.INFO, format="%(asctime)s - %(name)s - %(levelname)s - %(message)s"
)
logger = logging.getLogger("one")
logger.info("to the console")

# 2. into a file
logger = logging.getLogger("two")
logger.setLevel(level=logging.INFO)
handler = logging.FileHandler("Alibaba.log")
formatter = logging.Formatter("%(asctime)s - %(name)s - %(levelname)s - %(message)s")
handler.setFormatter(formatter)
logger.addHandler(handler)
logger.info("to the file")

# 3. a format of one's own, also for dates
logger = logging.getLogger("three")
logger.propagate = False
logger.setLevel(level=logging.WARN)
formatter = logging.Formatter(
    fmt="%(asctime)s - %(name)s - %(levelname)s - %(message)s", datefmt="%Y/%m/%d %H:%M:%S"
)
handler = logging.StreamHandler()
handler.setFormatter(formatter)
logger.addHandler(handler)
logger.warning("with another date")

# 4. tracebacks, to a file and to the screen
logger = logging.getLogger("four")
logger.propagate = False
logger.setLevel(level=logging.DEBUG)
formatter = logging.Formatter("%(asctime)s - %(name)s - %(levelname)s - %(message)s")
file_handler = logging.FileHandler("result.log")
file_handler.setFormatter(formatter)
logger.addHandler(file_handler)
stream_handler = logging.StreamHandler()
stream_handler.setFormatter(formatter)
logger.addHandler(stream_handler)

logger.info("Start")
logger.warning("Something maybe fail.")
try:
    result = 10 / 0
except Exception:
    logger.error("Faild to get result", exc_info=True)
logger.info("Finished")
